"""Reconstruction error against the number of iterations of Algorithm 1 (Fig. 4a)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mintnet.bijections.triangular import TriangularBijection
from mintnet.figures.reconstruction import logs, pixel_error
from mintnet.figures.style import Theme, legend
from mintnet.models import Flow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ITERATIONS = (1, 2, 4, 8, 16, 32, 60, 90, 120)


@dataclass(frozen=True)
class ErrorCurve:
    """Errors for growing numbers of iterations in each layer.

    Attributes:
        step: α.
        iterations: T, one for each point.
        errors: (points, N) ‖x − y‖² / D of each image.
    """

    step: float
    iterations: tuple[int, ...]
    errors: Tensor

    @property
    def centre(self) -> list[float]:
        """exp of the mean of the log error, at each point."""
        return logs(self.errors).mean(1).exp().tolist()

    @property
    def spread(self) -> list[float]:
        """exp of the standard deviation of the log error: the band is centre · spread^±1."""
        return logs(self.errors).std(1, correction=0).exp().tolist()

    def to_dict(self) -> dict[str, Any]:
        """The curve as plain data."""
        return {
            "step": self.step,
            "divisor": 1 / self.step,
            "images": self.errors.shape[1],
            "iterations": list(self.iterations),
            "error": self.centre,
            "spread": self.spread,
        }


@torch.no_grad()
def error_curve(
    flow: Flow,
    images: Tensor,
    step: float = 1.0,
    iterations: Sequence[int] = ITERATIONS,
    tick: Callable[[int], None] | None = None,
) -> ErrorCurve:
    """Invert every layer with T steps of Algorithm 1, and no check, for each T in ``iterations``.

    Shape: images (N, C, H, W) uint8. ``tick`` hears of each T that is done.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> images = torch.randint(0, 17, (4, 1, 8, 8), dtype=torch.uint8)
        >>> curve = error_curve(flow, images, step=0.5, iterations=(1, 20))
        >>> bool(curve.errors[0].max() > curve.errors[1].max())
        True
    """
    z = flow.encode(images)
    errors = []
    for count in iterations:
        errors.append(pixel_error(flow, images, invert_with(flow, z, step, count)))
        if tick:
            tick(count)
    return ErrorCurve(step, tuple(iterations), torch.stack(errors))


@torch.no_grad()
def invert_with(flow: Flow, z: Tensor, step: float, count: int) -> Tensor:
    """What ``count`` steps of Algorithm 1 in each layer make of z: any quality, no certificate."""
    for layer in reversed(flow.net.chain.leaves()):
        if isinstance(layer, TriangularBijection):
            z = _iterate(layer, z, step, count)
        else:
            z = layer.solve(z).value
    return z


def _iterate(layer: TriangularBijection, z: Tensor, step: float, count: int) -> Tensor:
    """x ← x − α (f(x) − z) / diag J(x), for those samples that still move."""
    x = layer.start(z)
    active = torch.arange(len(z), device=z.device)
    still = torch.finfo(z.dtype).eps
    for _ in range(count):
        y, slope = layer.evaluate(x[active])
        change = (y - z[active]) / slope
        x[active] = x[active] - step * change
        size = x[active].flatten(1).abs().amax(1)
        moving = change.flatten(1).abs().amax(1) > still * size  # a sample of NaN moves no more
        active = active[moving]
        if not len(active):
            break
    return x


def draw_error_curves(
    axes: Axes,
    theme: Theme,
    curves: Sequence[ErrorCurve],
    reached: tuple[str, float] | None = None,
) -> None:
    """Draw each curve with its band on logarithmic axes, and what another solver reached."""
    for curve, colour in zip(curves, theme.colours, strict=False):
        centre, spread = torch.tensor(curve.centre), torch.tensor(curve.spread)
        label = "α = 1" if curve.step == 1 else f"α = 1/{1 / curve.step:.4g}"
        axes.fill_between(
            curve.iterations, centre / spread, centre * spread, color=colour, alpha=0.2, linewidth=0
        )
        axes.plot(curve.iterations, centre, "o-", color=colour, markersize=4, label=label)
    if reached:
        label, error = reached
        axes.axhline(error, color=theme.quiet, linestyle="--", label=label)
    axes.set_yscale("log")
    ticks = curves[0].iterations if curves else ()
    axes.set_xscale("log" if min(ticks, default=0) > 0 else "symlog")
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("iterations of Algorithm 1 in each layer")
    axes.set_ylabel("reconstruction error ‖x − y‖² / D")
    if len(curves) > 1 or reached:
        legend(axes, theme)
