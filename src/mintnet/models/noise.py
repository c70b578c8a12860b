"""Noise: of the pixels, a pure function of seed, draw and image; and the distribution of z."""

import math
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
Shape = tuple[int, ...]
Seed = Annotated[int, (-(2**63), 2**63 - 1)]


def uniform_noise(
    seed: int, draw: int | Tensor, index: Tensor, shape: Shape, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Uniform noise in (0, 1) for the images with these indices: index (batch,) → (batch, *shape).

    A counter-based generator (SplitMix64) of (seed, draw, image, pixel) with 23 random bits, which
    float32 holds exactly. Nothing is copied from the host, so that a CUDA graph can capture it.
    """
    pixel = torch.arange(torch.Size(shape).numel(), device=index.device)
    if torch.compiler.is_compiling():  # compilers take products of known numbers not to wrap
        hidden_zero = torch.zeros(1, dtype=torch.int64, device=index.device).argsort()
        index, pixel = index + hidden_zero, pixel + hidden_zero
    if not isinstance(draw, Tensor):
        draw = torch.full((), draw, dtype=torch.int64, device=index.device)
    seeds = torch.full((), seed, dtype=torch.int64, device=index.device)
    stream = _scramble(_scramble(index.to(torch.int64) + _scramble(seeds)) + _scramble(draw))
    bits = _scramble(stream[:, None] + pixel * _GOLDEN) >> 41 & 0x7FFFFF
    return ((bits.to(dtype) + 0.5) * 2.0**-23).reshape(-1, *shape)


def check_index(index: Tensor | None, images: Tensor) -> Tensor:
    """The images' places in their data set, (batch,) whole numbers; counted from 0 if None."""
    if index is None:
        return torch.arange(images.shape[0], device=images.device)
    if not isinstance(index, Tensor):
        raise ValueError(f"index: expected a tensor of whole numbers; got {type(index).__name__}")
    integers = index.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if index.shape != images.shape[:1] or not integers:
        wanted, got = f"({len(images)},), one an image", f"{index.dtype} of {tuple(index.shape)}"
        raise ValueError(f"index: expected whole numbers of shape {wanted}; got {got}")
    return index


def _scramble(x: Tensor) -> Tensor:
    """The finalizer of SplitMix64, on signed integers that wrap around."""
    x = x + _GOLDEN
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * (0x94D049BB133111EB - 2**64)
    return x ^ (x >> 31 & (1 << 33) - 1)


class Normal:
    """N(0, 1), entry by entry."""

    def log_prob(self, z: Tensor) -> Tensor:
        """The log-density of each entry, of the shape of z."""
        return -0.5 * (z * z + math.log(2 * math.pi))

    def to_normal(self, z: Tensor) -> Tensor:
        """The increasing map that makes z standard normal, for temperatures and interpolation."""
        return z

    def from_normal(self, u: Tensor) -> Tensor:
        return u


class Logistic(Normal):
    """The density σ(z) σ(−z): the natural base of mixture layers."""

    def log_prob(self, z: Tensor) -> Tensor:
        return F.logsigmoid(z) + F.logsigmoid(-z)

    def to_normal(self, z: Tensor) -> Tensor:
        """Φ⁻¹(σ(z)), computed in the lower tail, where σ(z) does not round to 1."""
        below: Tensor = torch.special.ndtri(torch.sigmoid(-z.abs().double()))
        return (below * -z.sign()).to(z.dtype)

    def from_normal(self, u: Tensor) -> Tensor:
        """logit Φ(u) = log Φ(u) − log Φ(−u)."""
        below, above = torch.special.log_ndtr(torch.stack([u, -u]).double())
        found: Tensor = below - above
        return found.to(u.dtype)


BASES: dict[str, Normal] = {"normal": Normal(), "logistic": Logistic()}
