"""Images through the network and back (Fig. 4b), also by Algorithm 1 step by step (Fig. 4a)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mintnet.analysis.layers import LayerRow, layer_rows
from mintnet.bijections import TriangularBijection
from mintnet.models import Flow
from mintnet.models.batches import Progress
from mintnet.precision import true_float32
from mintnet.solvers import FixedPoint, Solution, Solver
from mintnet.solvers.fixed_point import State

ITERATIONS = (1, 2, 4, 8, 16, 32, 60, 90, 120)
LEAST = 1e-18  # float32 cannot tell smaller errors apart
DIVISORS = (1.0, 3.5)  # d of the steps α = 1/d: the natural one, and the paper's for MNIST


def typical(errors: Tensor) -> Tensor:
    """exp of the mean log error over the last dimension."""
    return errors.double().clamp(min=LEAST).log().mean(-1).exp()


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

    def to_dict(self) -> dict[str, Any]:
        return {
            "images": len(self.originals),
            "byte_exact": self.exact,
            "mean_error": float(self.errors.mean()),
            "typical_error": float(typical(self.errors)),
            "worst_error": float(self.errors.max()),
        }


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
    pixels = flow.pixels.invert(y.double())
    return ((x - pixels) ** 2).nan_to_num(nan=1.0).clamp(max=1.0).flatten(1).mean(1)


@dataclass(frozen=True)
class ErrorCurve:
    """Errors for growing numbers of steps of Algorithm 1 in each layer."""

    step: float  # α
    iterations: tuple[int, ...]  # one for each point
    errors: Tensor  # (points, N) ‖x − y‖² / D of each image

    @property
    def label(self) -> str:
        """The curve's α in words."""
        return "α = 1" if self.step == 1 else f"α = 1/{1 / self.step:.4g}"

    @property
    def centre(self) -> list[float]:
        """exp of the mean of the log error, at each point."""
        return typical(self.errors).tolist()

    @property
    def spread(self) -> list[float]:
        """exp of the standard deviation of the log error: the band is centre · spread^±1."""
        logs = self.errors.double().clamp(min=LEAST).log()
        return logs.std(1, correction=0).exp().tolist()

    def to_dict(self) -> dict[str, Any]:
        return {
            "divisor": 1 / self.step,
            "images": self.errors.shape[1],
            "iterations": list(self.iterations),
            "error": self.centre,
            "spread": self.spread,
        }


@dataclass(frozen=True)
class Verification:
    """A reconstruction by a solver that checks residuals, and curves of Algorithm 1 beside it."""

    reconstruction: Reconstruction
    layers: list[LayerRow]
    curves: list[ErrorCurve]
    solver: str = "auto"  # of the reconstruction

    @property
    def reached(self) -> tuple[str, float]:
        """What the solver of the reconstruction reached, for the plot: a label and its error."""
        back, converged = self.reconstruction, self.reconstruction.solution.converged
        verified = f"{int(converged.sum())} of {len(converged)} verified"
        return f"{self.solver}: {verified}", float(typical(back.errors))

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.reconstruction.to_dict(),
            "layers": [asdict(row) for row in self.layers],
            "curves": [curve.to_dict() for curve in self.curves],
        }


def verify(
    flow: Flow,
    images: Tensor,
    solver: Solver | None = None,
    divisors: Sequence[float] = DIVISORS,
    iterations: Sequence[int] = ITERATIONS,
    curve_images: int | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Reconstruct uint8 images by a solver, and the first of them by Algorithm 1 step by step.

    Examples:
        >>> flow, images = Flow.preset("digits"), torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        >>> found = verify(flow, images, iterations=(1, 20))
        >>> found.reached[0], len(found.curves), len(found.layers)
        ('auto: 2 of 2 verified', 2, 12)
    """
    back = reconstruct(flow, images, solver, progress=progress)
    few = images[:curve_images]
    curves = [error_curve(flow, few, 1 / d, iterations, progress) for d in divisors]
    name = "auto" if solver is None else type(solver).__name__
    return Verification(back, layer_rows(flow.net, back.solution), curves, name)


@torch.no_grad()
def error_curve(
    flow: Flow,
    images: Tensor,
    step: float = 1.0,
    iterations: Sequence[int] = ITERATIONS,
    progress: Progress | None = None,
) -> ErrorCurve:
    """Invert every layer with T steps of Algorithm 1, unchecked, for each T in ``iterations``."""
    z, errors = flow.encode(images), []
    for number, count in enumerate(iterations, 1):
        errors.append(pixel_error(flow, images, algorithm_1(flow, z, step, count)))
        if progress:
            progress(sum(iterations[:number]), sum(iterations))
    return ErrorCurve(step, tuple(iterations), torch.stack(errors))


@torch.no_grad()
def algorithm_1(flow: Flow, z: Tensor, step: float, count: int) -> Tensor:
    """What exactly ``count`` steps of Algorithm 1 in each layer make of z, without a check."""
    with true_float32():
        for layer in reversed(flow.given(flow.context(None, len(z))).leaves()):
            if isinstance(layer, TriangularBijection):
                z = _iterate(layer, z, step, count)
            else:
                z = layer.solve(z).value
    return z


def _iterate(layer: TriangularBijection, z: Tensor, step: float, count: int) -> Tensor:
    """x after ``count`` steps, or fewer where no sample moves any more."""
    solver, system = FixedPoint(step, allow_any_step=True), layer.system()
    scale = z.abs().flatten(1).amax(1).clamp(min=torch.finfo(z.dtype).tiny)
    state = State.begin(z, scale, layer.start(z), system.context)
    for _ in range(count):
        state = solver.advance(state, system.evaluate)
        if bool(state.done.all()):
            break
    return state.x
