"""`mintnet verify`: is the inverse what it claims to be? (Fig. 4a)"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mintnet.cli.command import Count, DataCommand, File, FlawedResult
from mintnet.cli.output import (
    PLOTS,
    Tasks,
    check_output,
    console,
    free_place,
    print_check,
    print_layers,
    write_picture,
)

if TYPE_CHECKING:
    from torch import Tensor

    from mintnet.cli.model import OpenModel
    from mintnet.models import Classifier


@dataclass(kw_only=True)
class Verify(DataCommand):
    """Invert test images layer by layer, and plot the error of Algorithm 1 over its steps.

    For a classifier: map features back in float64 and in float32, with the growth of errors from
    layer to layer and the energy in the padding.
    """

    count: Count = 128
    """How many images, from the first on."""
    divisors: tuple[float, ...] = (1.0, 3.5)
    """Draw a curve for each of these d: α = 1/d."""
    iterations: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 60, 90, 120)
    """Steps of Algorithm 1 in each layer, one for each point of a curve."""
    time_limit: float = 60.0
    """Seconds for the curves, about: fewer images, four at least, where all need more. 0: none."""
    out: File = None
    """The plot, as .png, .svg or .pdf; invertibility.png if not given, numbered if that is taken.
    Of density models alone."""

    def run(self) -> dict[str, Any]:
        from mintnet.models import Flow

        if self.count < 1:
            raise ValueError(f"--count is at least 1; got {self.count}")
        opened = self.open()
        if isinstance(opened.model, Flow):
            return self._flow(opened)
        model = opened.classifier
        for option in fields(self):
            about_curves = option.name in ("divisors", "iterations", "time_limit", "out")
            if about_curves and getattr(self, option.name) != option.default:
                raise ValueError(
                    f"{self.model} is a classifier, for which no curves are drawn, so "
                    f"--{option.name.replace('_', '-')} has no meaning"
                )
        return self._classifier(opened, model)

    def _flow(self, opened: OpenModel) -> dict[str, Any]:
        from mintnet.analysis import residual_check, verify
        from mintnet.figures import draw_error_curves, render

        place = free_place(self.out, "invertibility.png")
        self._check(place)
        out, solver = console(), self.chosen_solver()
        images = self._images(opened)
        with Tasks(out) as task:
            found = verify(
                opened.flow,
                images,
                solver,
                self.divisors,
                self.iterations,
                self.time_limit,
                task(f"{len(images)} images there and back, then Algorithm 1"),
            )
        back = found.reconstruction
        facts = residual_check(opened.flow.net, back.solution)
        print_layers(out, found.layers)
        print_check(out, facts)
        out.print(
            f"{back.exact} of {len(images)} images byte for byte, mean ‖x − y‖² / D = "
            f"{float(back.errors.mean()):.2e}"
        )
        for curve in found.curves:
            out.print(
                f"Algorithm 1, {curve.label}, {curve.errors.shape[1]} images: error "
                f"{curve.centre[-1]:.2e} after {curve.iterations[-1]} steps"
            )
        if len(found.curves[0].errors[0]) < len(images):
            out.print("Curves have fewer images, to save time; --time-limit 0 takes all")
        draw = partial(draw_error_curves, curves=found.curves, reached=found.reached)
        path, words = write_picture(render(draw, kind=place.suffix.lower()[1:]), place)
        out.print(words)
        figures = {"picture": path, **facts, **found.to_dict()}
        if facts["verified"] < facts["samples"]:
            raise FlawedResult(
                f"{back.solution.message}. The plot is in {path}. Use --solver auto.", figures
            )
        return figures

    def _check(self, place: Path) -> None:
        if not self.iterations or min(self.iterations) < 0:
            raise ValueError("--iterations are at least 0")
        if not self.divisors or min(self.divisors) <= 0.5:
            raise ValueError(
                "--divisors are above 0.5: a step 1/d of 2 or more converges nowhere (Theorem 2)"
            )
        check_output(place, PLOTS)

    def _images(self, opened: OpenModel) -> Tensor:
        return self.images(opened).images[: self.count].to(opened.model.device)

    def _classifier(self, opened: OpenModel, model: Classifier) -> dict[str, Any]:
        import torch

        from mintnet.analysis import round_trip

        out, solver = console(), self.chosen_solver()
        images = self._images(opened)
        with Tasks(out) as task:
            wide, narrow = (
                round_trip(
                    model, images, dtype, solver, progress=task(f"features and back in {dtype}")
                )
                for dtype in (torch.float64, torch.float32)
            )
        print_layers(out, wide.layers)
        for trip in (wide, narrow):
            out.print(str(trip), style="green" if trip.verified == trip.images else "red")
        if narrow.byte_exact < wide.byte_exact:
            out.print(
                "The residual check is about features. Their rounding grows on the way back, too "
                "much for float32 here: take float64 (clf.double()) to get pictures back."
            )
        figures = {
            "model": self.model,
            "split": self.split,
            **{trip.precision: asdict(trip) for trip in (wide, narrow)},
        }
        failed = [
            f"{trip.images - trip.verified} of {trip.images} inversions in {trip.precision}"
            for trip in (wide, narrow)
            if trip.verified < trip.images
        ]
        if failed:
            words = "use --solver auto" if self.solver != "auto" else "do not rely on these images"
            raise FlawedResult(f"{' and '.join(failed)} are not verified: {words}", figures)
        return figures
