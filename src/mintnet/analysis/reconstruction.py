"""Images through the network and back (Fig. 4b), and the error that Fig. 4a plots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mintnet.models import Flow
from mintnet.models.batches import Progress
from mintnet.solvers import Solution, Solver


@dataclass(frozen=True)
class Reconstruction:
    """Images and what came back."""

    originals: Tensor  # (N, C, H, W) uint8
    images: Tensor  # (N, C, H, W) uint8, the reconstructions
    errors: Tensor  # (N,) ‖x − y‖² / D with pixels in [0, 1]
    solution: Solution

    @property
    def exact(self) -> int:
        """How many images came back byte for byte."""
        return int((self.originals == self.images).flatten(1).all(1).sum())

    @property
    def typical_error(self) -> float:
        """exp of the mean of the log error, as in Fig. 4a."""
        return float(logs(self.errors).mean().exp())

    def to_dict(self) -> dict[str, Any]:
        return {
            "images": len(self.originals),
            "byte_exact": self.exact,
            "mean_error": float(self.errors.mean()),
            "typical_error": self.typical_error,
            "worst_error": float(self.errors.max()),
            "verified": int(self.solution.converged.sum()),
            "worst_residual": float(self.solution.residual.max()),
        }


def logs(errors: Tensor) -> Tensor:
    """Logarithms of errors, all finite: float32 cannot tell less than 1e-18 apart."""
    return errors.double().clamp(min=1e-18).log()


@torch.no_grad()
def reconstruct(
    flow: Flow,
    images: Tensor,
    solver: Solver | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Reconstruction:
    """Encode uint8 images (N, C, H, W) and decode them again.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> result = reconstruct(flow, torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
        >>> result.exact, bool(result.errors.max() < 1e-9)
        (3, True)
    """
    if not len(images):
        raise ValueError("expected at least one image; got none")
    solution = flow.solve(flow.encode(images), solver, batch_size=batch_size, progress=progress)
    errors = pixel_error(flow, images, solution.value)
    return Reconstruction(images, flow.to_images(solution.value), errors, solution)


def pixel_error(flow: Flow, images: Tensor, y: Tensor) -> Tensor:
    """‖x − y‖² / D between images and pixels after the logit, both brought to [0, 1]: (N,).

    An entry that is not a number counts as an error of 1, the largest there is.
    """
    x = (images.double() + 0.5) / flow.levels
    pixels = flow.logit.invert(y.double())
    return ((x - pixels) ** 2).nan_to_num(nan=1.0).clamp(max=1.0).flatten(1).mean(1)
