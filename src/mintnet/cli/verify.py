"""`mintnet verify`: is the inverse what it claims to be? (Fig. 4a)"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from mintnet.cli.command import Count, DataCommand
from mintnet.cli.output import (
    PLOTS,
    certificate,
    check_output,
    console,
    print_certificate,
    progress,
    write_picture,
)

if TYPE_CHECKING:
    from torch import Tensor

    from mintnet.cli.model import OpenModel
    from mintnet.figures import ErrorCurve, LayerRow


@dataclass(kw_only=True)
class Verify(DataCommand):
    """Invert test images layer by layer, and plot the error of Algorithm 1 over its iterations.

    For a classifier: map features back in float64 and in float32, with the amplification of errors
    from layer to layer and the energy in the padding.
    """

    count: Count = 128
    """How many images, from the first on."""

    divisors: tuple[float, ...] = (1.0, 3.5)
    """Draw a curve for each of these d: α = 1/d."""

    iterations: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 60, 90, 120)
    """Iterations of Algorithm 1 in each layer, one for each point of a curve."""

    time_limit: float = 300.0
    """Seconds for the curves, about: fewer images, four at least, where all need more. 0: none."""

    out: Path | None = None
    """The plot, as .png, .svg or .pdf; invertibility.png if not given. Of density models alone."""

    def run(self) -> dict[str, Any]:
        from mintnet.cli.classifier import is_classifier
        from mintnet.cli.verify_classifier import verify_classifier
        from mintnet.figures import layer_rows, reconstruct

        if is_classifier(self.model):
            return verify_classifier(self)
        place = self.out or Path("invertibility.png")
        self._check(place)
        out, model = console(), self.open()
        images = self.images(model, few=True).images[: self.count].to(model.device)
        with progress(out, "there and back", len(images)) as tick:
            result = reconstruct(model.flow, images, self.chosen_solver(), tick=tick)
        rows, facts = layer_rows(result.solution), certificate(result.solution)
        _print_layers(out, rows)
        print_certificate(out, facts)
        out.print(
            f"{result.exact} of {len(images)} images byte for byte, mean ‖x − y‖² / D = "
            f"{float(result.errors.mean()):.2e}"
        )
        curves = self._curves(out, model, images)
        label = f"{self.solver}: {facts['certified']} of {facts['samples']} certified"
        reached = (label, result.typical_error)
        path, words = write_picture(_plot(curves, reached, place.suffix.lower()[1:]), place)
        for curve in curves:
            out.print(
                f"Algorithm 1, α = 1/{1 / curve.step:g}, {curve.errors.shape[1]} images: error "
                f"{curve.centre[-1]:.2e} after {curve.iterations[-1]} iterations"
            )
        out.print(words)
        figures = {
            "picture": path,
            **facts,
            **result.to_dict(),
            "layers": [row.to_dict() for row in rows],
            "curves": [curve.to_dict() for curve in curves],
        }
        result.solution.require(f"The plot is in {path}. Use --solver auto.")
        return figures

    def _check(self, place: Path) -> None:
        if self.count < 1 or not self.iterations or min(self.iterations) < 0:
            raise ValueError("--count is at least 1, and --iterations are at least 0")
        if not self.divisors or min(self.divisors) <= 0.5:
            raise ValueError(
                "--divisors are above 0.5: a step 1/d of 2 or more converges nowhere (Theorem 2)"
            )
        check_output(place, PLOTS)

    def _curves(self, out: Console, model: OpenModel, images: Tensor) -> list[ErrorCurve]:
        from mintnet.figures import error_curve
        from mintnet.figures.budget import affordable

        passes = sum(self.iterations) * len(self.divisors)
        count = affordable(model.flow, images, passes, self.time_limit)
        if count < len(images):
            out.print(
                f"Curves on {count} of {len(images)} images, to take about "
                f"{self.time_limit:.0f} s; --time-limit 0 takes all"
            )
        with progress(out, "Algorithm 1", passes) as tick:
            return [
                error_curve(model.flow, images[:count], 1 / divisor, self.iterations, tick)
                for divisor in self.divisors
            ]


def _plot(curves: list[ErrorCurve], reached: tuple[str, float], kind: str) -> bytes:
    from functools import partial

    from mintnet.figures import draw_error_curves, render

    return render(partial(draw_error_curves, curves=curves, reached=reached), kind=kind)


def _print_layers(out: Console, rows: list[LayerRow]) -> None:
    table = Table(title="Layer by layer", title_justify="left", title_style="bold")
    table.add_column("layer", justify="right")
    table.add_column("what it is")
    for name in ("steps (median)", "most", "worst residual", "failures"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row.number),
            row.name,
            f"{row.median_steps:g}",
            str(row.most_steps),
            f"{row.residual:.1e}",
            f"[red]{row.failures}[/]" if row.failures else "0",
        )
    out.print(table)
