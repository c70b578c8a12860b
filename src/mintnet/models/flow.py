r"""Density models of images: pixels in, exact likelihood out, and back.

The bookkeeping of bits per dimension, in one place. An image holds D integers v in
{0, …, L − 1}. With uniform noise u in (0, 1),

    x = (v + u) / L                       in the unit cube,
    y = logit(λ + (1 − 2λ) x) − c         on the real line,
    z = net(y),

and by the change of variables

    log p(x) = log N(z; 0, I) + log |det ∂z/∂y| + log |det ∂y/∂x|.

The L-th part of the unit interval belongs to each integer, so P(v) = ∫ p over a cube of volume
L^−D, and by Jensen's inequality log P(v) ≥ E_u [ log p(x) ] − D log L. The right-hand side for
one draw of u is `log_prob`; bits per dimension are − log_prob / (D log 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.bijections import Logit
from mintnet.models.mintnet import PRESETS, MintNet, MintNetConfig
from mintnet.models.noise import uniform_noise
from mintnet.models.storage import (
    CONFIG,
    ModelFileError,
    load_weights,
    read_config,
    save_model,
    shipped,
)
from mintnet.precision import true_float32
from mintnet.solvers import REMEDY, Solution, Solver

Transform = Callable[[Tensor], tuple[Tensor, Tensor]]

LAMBDAS = {"digits": 0.01, "mnist": 1e-6, "cifar10": 0.05, "imagenet32": 0.05}
LEVELS = {"digits": 17}


class Flow(nn.Module):
    """Uniform dequantization, the logit, a MintNet, a standard normal.

    Args:
        config: the shape of the MintNet.
        lam: λ of the logit.
        levels: L, the number of grey levels.
        centre: c, what zeros around an image stand for after the logit.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> images = torch.randint(0, 17, (4, 1, 8, 8), dtype=torch.uint8)
        >>> flow.bits_per_dim(images).shape
        torch.Size([4])
        >>> bool((flow.decode(flow.encode(images)) == images).all())
        True
    """

    def __init__(
        self, config: MintNetConfig, lam: float = 0.05, levels: int = 256, centre: float = 0.0
    ) -> None:
        super().__init__()
        if not 2 <= levels <= 256:
            raise ValueError(f"levels must lie between 2 and 256; got {levels}")
        self.net = MintNet(config)
        self.logit = Logit(lam, centre)
        self.levels = levels

    @staticmethod
    def preset(name: str) -> Flow:
        """The density model of the paper for a data set, with fresh weights.

        Args:
            name: digits, mnist, cifar10 or imagenet32.
        """
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
        return Flow(PRESETS[name], LAMBDAS[name], LEVELS.get(name, 256))

    def like(self, config: MintNetConfig) -> Flow:
        """Another network, with fresh weights, behind the same pixels.

        Examples:
            >>> flow = Flow(MintNetConfig((1, 4, 4), pairs=(1,), filters=(2,)), levels=17)
            >>> flow.like(MintNetConfig((1, 8, 8), pairs=(1,), filters=(2,))).levels
            17
        """
        return Flow(config, self.logit.lam, self.levels, self.logit.centre)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        return self.net.config.shape

    @property
    def dimensions(self) -> int:
        """D = C · H · W."""
        return math.prod(self.shape)

    def log_prob(
        self, images: Tensor, seed: int = 0, draw: int = 0, index: Tensor | None = None
    ) -> Tensor:
        """log_prob of uint8 images in nats, for one draw of noise: a lower bound in expectation.

        Args:
            images: (batch, C, H, W), uint8.
            seed: of the dequantization noise.
            draw: which of many draws.
            index: (batch,) the images' places in their data set, which fix their noise; counts
                from 0 if not given.

        Shape: (batch,).
        """
        with true_float32():
            return self.log_density(self.dequantize(images, seed, draw, index))

    def dequantize(
        self, images: Tensor, seed: int = 0, draw: int = 0, index: Tensor | None = None
    ) -> Tensor:
        """x = (v + u) / L in (0, 1) for uint8 images v, with the noise u of `log_prob`."""
        self._check_images(images)
        if index is None:
            index = torch.arange(len(images), device=images.device)
        noise = uniform_noise(seed, draw, index, self.shape, self._dtype)
        return (images.to(self._dtype) + noise) / self.levels

    def log_density(self, x: Tensor, transform: Transform | None = None) -> Tensor:
        """log p(x) − D log L for dequantized pixels x in (0, 1), (batch,).

        ``transform`` replaces the net's own, for a faster way to compute the same.
        """
        y, log_det_logit = self.logit.transform(x)
        z, log_det = (transform or self.net.transform)(y)
        return (
            standard_normal_log_prob(z)
            + log_det
            + log_det_logit
            - self.dimensions * math.log(self.levels)
        )

    def bits_per_dim(
        self, images: Tensor, seed: int = 0, draw: int = 0, index: Tensor | None = None
    ) -> Tensor:
        """− log_prob / (D log 2). Shape: (batch,)."""
        nats = self.log_prob(images, seed, draw, index)
        return -nats / (self.dimensions * math.log(2))

    def encode(self, images: Tensor) -> Tensor:
        """z of the centres of the images' bins. Shape: that of the net's output."""
        self._check_images(images)
        centres = (images.to(self._dtype) + 0.5) / self.levels
        with true_float32():
            z, _ = self.net(self.logit.transform(centres)[0])
        return z  # type: ignore[no-any-return]

    @torch.no_grad()
    def decode(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        """The uint8 images with these z, by the certified inverse; raises if it is not."""
        return self.to_images(self.solve(z, solver).require(REMEDY))

    def solve(self, z: Tensor, solver: Solver | None = None) -> Solution:
        """The inverse of the net alone, as a `Solution` for the pixels after the logit."""
        return self.net.solve(z, solver)

    def to_images(self, y: Tensor) -> Tensor:
        """uint8 images from pixels after the logit."""
        levels = (self.logit.invert(y) * self.levels).floor()
        return levels.clamp(0, self.levels - 1).to(torch.uint8)

    @torch.no_grad()
    def sample(
        self,
        count: int,
        temperature: float = 1.0,
        seed: int | None = None,
        solver: Solver | None = None,
    ) -> Tensor:
        """New images, uint8 (count, C, H, W): z ~ N(0, temperature²) through the inverse."""
        return self.decode(self.sample_latents(count, temperature, seed), solver)

    def sample_latents(
        self, count: int, temperature: float = 1.0, seed: int | None = None
    ) -> Tensor:
        """z ~ N(0, temperature²) of the net's output shape, drawn on the CPU."""
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be positive; got {temperature}")
        if count < 1:
            raise ValueError(f"at least one sample can be drawn; got {count}")
        if seed is not None and not -(2**63) <= seed < 2**64:
            raise ValueError(f"a seed is a whole number of at most 64 bits; got {seed}")
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        z = torch.randn(count, *self._latent_shape, generator=generator) * temperature
        return z.to(self._device, self._dtype)

    def save(self, folder: str | Path, **extra: Any) -> None:
        """Write ``model.safetensors`` and ``config.json`` into a folder."""
        config = {
            "kind": "flow",
            "net": self.net.config.to_dict(),
            "logit_lambda": self.logit.lam,
            "levels": self.levels,
            **({"centre": self.logit.centre} if self.logit.centre else {}),
            **extra,
        }
        save_model(folder, self, config)

    @staticmethod
    def from_pretrained(name: str) -> Flow:
        """The density model of that name that ships with the package.

        Examples:
            >>> Flow.from_pretrained("nothing")
            Traceback (most recent call last):
            mintnet.models.storage.ModelFileError: no flow 'nothing' comes with the package; ...
        """
        return Flow.load(shipped(name, "flow"))

    @staticmethod
    def load(folder: str | Path) -> Flow:
        """The model saved in a folder; of a run folder, its last weights."""
        if not (Path(folder) / CONFIG).exists() and (Path(folder) / "last" / CONFIG).is_file():
            folder = Path(folder) / "last"
        config = read_config(folder, "flow")
        try:
            net = MintNetConfig(**config["net"])
            centre = float(config.get("centre", 0.0))
            flow = Flow(net, float(config["logit_lambda"]), int(config["levels"]), centre)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(
                f"{Path(folder) / CONFIG} does not describe a flow: {error}"
            ) from error
        load_weights(folder, flow)
        return flow.eval()

    @property
    def _latent_shape(self) -> tuple[int, ...]:
        shape = self.net.output_shape
        assert shape is not None
        return shape

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _check_images(self, images: Tensor) -> None:
        if not isinstance(images, Tensor):
            raise TypeError(
                f"this model takes a tensor of images; got {type(images).__name__}: "
                "torch.from_numpy makes one of an array"
            )
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != self.shape:
            raise ValueError(
                f"this model takes uint8 images of shape (batch, {', '.join(map(str, self.shape))})"
                f"; got {images.dtype} of shape {tuple(images.shape)}"
            )
        if images.numel() and int(images.max()) >= self.levels:
            raise ValueError(
                f"this model knows {self.levels} grey levels, 0 to {self.levels - 1}; got a pixel "
                f"of {int(images.max())}"
            )


def standard_normal_log_prob(z: Tensor) -> Tensor:
    """log N(z; 0, I) of each sample. Shape: (batch,)."""
    z = z.flatten(1)
    return -0.5 * (z * z).sum(1) - 0.5 * z.shape[1] * math.log(2 * math.pi)
