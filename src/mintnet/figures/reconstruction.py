"""Images through the network and back: Fig. 4b and the error that Fig. 4a plots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mintnet.figures.grid import image_grid
from mintnet.figures.layers import BATCH, join_solutions, solve_aloud
from mintnet.models import Flow
from mintnet.solvers import Solution, Solver

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST = 1e-18  # below what float32 can tell apart; its logarithm is finite


@dataclass(frozen=True)
class Reconstruction:
    """Images and what came back.

    Attributes:
        originals: (N, C, H, W) uint8.
        images: (N, C, H, W) uint8, the reconstructions.
        errors: (N,) ‖x − y‖² / D with pixels in [0, 1].
        solution: how the inversion went.
    """

    originals: Tensor
    images: Tensor
    errors: Tensor
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
        """The figures as plain data."""
        return {
            "images": len(self.originals),
            "byte_exact": self.exact,
            "mean_error": float(self.errors.mean()),
            "typical_error": self.typical_error,
            "worst_error": float(self.errors.max()),
            "certified": int(self.solution.converged.sum()),
            "worst_residual": float(self.solution.residual.max()),
        }


def logs(errors: Tensor) -> Tensor:
    """Logarithms of errors, finite ones."""
    return errors.double().clamp(min=LEAST).log()


@torch.no_grad()
def reconstruct(
    flow: Flow,
    images: Tensor,
    solver: Solver | None = None,
    batch: int = BATCH,
    tick: Callable[[float], None] | None = None,
) -> Reconstruction:
    """Encode images and decode them again; ``tick`` hears of layers, as shares of the images.

    Shape: images (N, C, H, W) uint8.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> result = reconstruct(flow, torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
        >>> result.exact, bool(result.errors.max() < 1e-9)
        (3, True)
    """
    if not len(images):
        raise ValueError("expected at least one image; got none")
    solutions = []
    for part in images.split(batch):
        solutions.append(solve_aloud(flow, flow.encode(part), solver, tick))
    solution = join_solutions(solutions)
    errors = pixel_error(flow, images, solution.value)
    return Reconstruction(images, flow.to_images(solution.value), errors, solution)


def paired_grid(result: Reconstruction, levels: int, most: int = 48, columns: int = 16) -> Image:
    """Rows of originals, each above the row of their reconstructions (Fig. 4b).

    Args:
        result: the images.
        levels: number of grey levels.
        most: how many pairs to show; only whole rows are.
        columns: images in a row.
    """
    columns = min(columns, len(result.originals), most)
    shown = min(most, len(result.originals)) // columns * columns
    pairs = torch.stack([result.originals[:shown], result.images[:shown]])
    rows = [row for part in pairs.split(columns, dim=1) for row in part]
    gaps = tuple(range(1, len(rows) - 1, 2))
    return image_grid(torch.cat(rows), levels, columns, width=800, row_gaps=gaps)


def pixel_error(flow: Flow, images: Tensor, y: Tensor) -> Tensor:
    """‖x − y‖² / D between images and pixels after the logit, both brought to [0, 1].

    An entry that is not a number is as wrong as can be, and counts as an error of 1.
    Shape: (N,).

    Examples:
        >>> flow = Flow.preset("digits")
        >>> black = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        >>> pixel_error(flow, black, torch.full((2, 1, 8, 8), float("nan")))
        tensor([1., 1.], dtype=torch.float64)
    """
    x = (images.double() + 0.5) / flow.levels
    pixels = flow.logit.invert(y.double())
    return ((x - pixels) ** 2).nan_to_num(nan=1.0).clamp(max=1.0).flatten(1).mean(1)
