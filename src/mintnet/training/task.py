"""What is learned: a model and a loss for each image. The loop knows no more than this."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mintnet.models.fast import fast_transform, why_not_fast
from mintnet.models.flow import Flow
from mintnet.models.noise import uniform_noise

REACH = 3.0
"""Bits per dimension above the usual that are out of all proportion: images of one set differ by
about as much in good models."""


@dataclass(frozen=True)
class Batch:
    """Images with what fixes all that is random about them.

    Shapes: images (batch, C, H, W) uint8; labels (batch,) int64 or None; index (batch,).
    """

    images: Tensor
    labels: Tensor | None
    index: Tensor
    seed: int
    draw: int | Tensor


@dataclass(frozen=True)
class FastPath:
    """A faster way to compute the same loss in training.

    Attributes:
        dtype: of convolutions.
        compiled: whether layers are compiled.
        on_chip: whether layers of few channels are kernels of their own, where they can be.
    """

    dtype: torch.dtype
    compiled: bool
    on_chip: bool = True


class Task(Protocol):
    """A model and what it is trained for.

    ``figure_names`` names what people read; by the first of them weights are chosen, and the
    least is the best.
    """

    figure_names: tuple[str, ...]
    draws_samples: bool
    """Whether the model makes images."""
    reach: float
    """Nats above the usual from which on the loss of an image is out of all proportion; infinite
    where that does not happen."""
    fast: FastPath | None
    """How the loss is computed in training, where that is not the plain way."""

    @property
    def model(self) -> nn.Module:
        """The network whose parameters are trained."""
        ...

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """``loss``, in nats, which is minimized, and the figures of each image.

        It neither waits for the device nor lets shapes depend on values, so that a step can be
        recorded. Shapes: (batch,).
        """
        ...

    def why_not_fast(self) -> str:
        """Why the model has no fast path, or nothing if it has one."""
        ...

    def describe(self) -> dict[str, Any]:
        """The model's shape as plain data."""
        ...

    def save(self, folder: Path, **extra: Any) -> None:
        """Write the model into a folder."""
        ...

    def samples(self, count: int, seed: int) -> Tensor | None:
        """New images, uint8, or None from a model that makes none."""
        ...


class DensityTask:
    """Maximum likelihood: the loss is − log p of the dequantized image, in nats.

    Examples:
        >>> task = DensityTask(Flow.preset("digits"))
        >>> images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
        >>> measured = task.measure(Batch(images, None, torch.arange(3), seed=0, draw=0))
        >>> bool((measured["bpd"] == task.flow.bits_per_dim(images)).all())
        True
    """

    figure_names: tuple[str, ...] = ("bpd",)
    draws_samples: bool = True

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.reach = REACH * flow.dimensions * math.log(2)
        self.fast: FastPath | None = None

    @property
    def model(self) -> nn.Module:
        return self.flow

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        flow = self.flow  # `log_prob` would check again in each step what is checked at the start
        dtype = next(flow.parameters()).dtype
        noise = uniform_noise(batch.seed, batch.draw, batch.index, flow.shape, dtype)
        transform = None
        if self.fast is not None and flow.training:
            fast = self.fast
            transform = partial(fast_transform, flow.net, **vars(fast))
        loss = -flow.log_density((batch.images.to(dtype) + noise) / flow.levels, transform)
        return {"loss": loss, "bpd": loss / (flow.dimensions * math.log(2))}

    def why_not_fast(self) -> str:
        return why_not_fast(self.flow.net)

    def describe(self) -> dict[str, Any]:
        flow = self.flow
        return {
            "kind": "flow",
            "net": flow.net.config.to_dict(),
            "parameters": flow.net.parameter_count(),
            "logit_lambda": flow.logit.lam,
            "centre": flow.logit.centre,
            "levels": flow.levels,
        }

    def save(self, folder: Path, **extra: Any) -> None:
        self.flow.save(folder, **extra)

    @torch.no_grad()
    def samples(self, count: int, seed: int) -> Tensor | None:
        return self.flow.sample(count, seed=seed)
