"""`mintnet verify` and `tune-step`: is the inverse what it claims to be? (Fig. 4a)"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from mintnet.analysis import round_trip, tune_step, verify
from mintnet.analysis.reconstruction import DIVISORS, ITERATIONS
from mintnet.analysis.tuning import Trial
from mintnet.calculus.masks import check_positive
from mintnet.cli.command import Count, DataCommand, File, FlawedResult
from mintnet.cli.model import OpenModel
from mintnet.cli.output import Tasks, console, output_place, print_check, print_layers, write
from mintnet.figures import draw_error_curves, render
from mintnet.models import Flow


@dataclass(kw_only=True)
class Verify(DataCommand):
    """Invert test images layer by layer, and plot the error of Algorithm 1 over its steps.

    For a classifier: map features back in float64 and in float32.
    """

    count: Count = 128  # How many images, from the first on.
    divisors: tuple[float, ...] = DIVISORS  # Draw a curve for each of these d: α = 1/d.
    iterations: tuple[int, ...] = ITERATIONS
    """Steps of Algorithm 1 in each layer, one for each point of a curve."""
    curve_images: int = 16  # How many of the images the curves are of.
    out: File = None
    """The plot, as .png, .svg or .pdf; invertibility.png if not given, numbered if that is taken.
    Of density models alone."""

    then = "mintnet report {model}"

    def run(self) -> dict[str, Any]:
        check_positive(count=self.count, curve_images=self.curve_images)
        opened = self.open()
        return self._flow(opened) if isinstance(opened.model, Flow) else self._classifier(opened)

    def _flow(self, opened: OpenModel) -> dict[str, Any]:
        if not self.iterations or min(self.iterations) < 0:
            raise ValueError("--iterations are at least 0")
        if not self.divisors or min(self.divisors) <= 0.5:
            raise ValueError(
                "--divisors are above 0.5: a step 1/d of 2 or more converges nowhere (Theorem 2)"
            )
        place = output_place(self.out, "invertibility.png", (".png", ".svg", ".pdf"))
        out, solver, flow = console(), self.chosen_solver(), opened.flow
        images = self.images(opened, self.count).images.to(flow.device)
        with Tasks(out) as task:
            progress = task(f"{len(images)} images there and back, then Algorithm 1")
            options = (self.divisors, self.iterations, self.curve_images, progress)
            found = verify(flow, images, solver, *options)
        back = found.reconstruction
        print_layers(out, found.layers)
        facts = print_check(out, flow.net, back.solution)
        out.print(
            f"{back.exact} of {len(images)} images byte for byte, mean ‖x − y‖² / D = "
            f"{float(back.errors.mean()):.2e}"
        )
        for curve in found.curves:
            out.print(
                f"Algorithm 1, {curve.label}, {curve.errors.shape[1]} images: error "
                f"{curve.centre[-1]:.2e} after {curve.iterations[-1]} steps"
            )
        draw = partial(draw_error_curves, curves=found.curves, reached=found.reached)
        path = write(out, place, render(draw, kind=place.suffix.lower()[1:]))
        figures = {"picture": path, **facts, **found.to_dict()}
        if facts["verified"] < facts["samples"]:
            words = f"{back.solution.message}. The plot is in {path}. Use --solver auto."
            raise FlawedResult(words, figures)
        return figures

    def _classifier(self, opened: OpenModel) -> dict[str, Any]:
        model, fresh = opened.classifier, Verify(model=self.model)
        for name in ("divisors", "iterations", "curve_images", "out"):
            if getattr(self, name) != getattr(fresh, name):
                raise ValueError(
                    f"{self.model} is a classifier, for which no curves are drawn, so "
                    f"--{name.replace('_', '-')} has no meaning"
                )
        out, solver, trips = console(), self.chosen_solver(), []
        images = self.images(opened, self.count).images
        with Tasks(out) as task:
            for dtype in (torch.float64, torch.float32):
                progress = task(f"features and back in {dtype}")
                trips.append(round_trip(model, images, dtype, solver, progress=progress))
        print_layers(out, trips[0].layers)
        for trip in trips:
            out.print(str(trip), style="green" if trip.verified == trip.images else "red")
        if trips[1].byte_exact < trips[0].byte_exact:
            out.print(
                "The residual check is about features. Their rounding grows on the way back, too "
                "much for float32 here: take float64 (clf.double()) to get pictures back."
            )
        figures = {trip.precision: asdict(trip) for trip in trips}
        failed = [
            f"{trip.images - trip.verified} of {trip.images} inversions in {trip.precision}"
            for trip in trips
            if trip.verified < trip.images
        ]
        if failed:
            words = "use --solver auto" if self.solver != "auto" else "do not rely on these images"
            raise FlawedResult(f"{' and '.join(failed)} are not verified: {words}", figures)
        return figures


@dataclass(kw_only=True)
class TuneStep(DataCommand):
    """Search for the step α = 1/d of Algorithm 1: d = 1 to 5 by 0.5, then by 0.05 near the best.

    The paper prints the divisor d as α. In Algorithm 1, and everywhere in mintnet, α is the step.
    The default solver needs no step; this is for --solver fixed-point.
    """

    count: Count = 16  # How many images, from the first on.

    then = "mintnet verify {model} --solver fixed-point --step {step:.6}"

    def run(self) -> dict[str, Any]:
        steps = 120 if self.solver_steps is None else self.solver_steps
        check_positive(count=self.count, solver_steps=steps)
        given = {"--solver": self.solver != "auto", "--step": self.step is not None}
        if any(given.values()):
            raise ValueError(
                "tune-step searches the step of Algorithm 1; leave out "
                f"{', '.join(name for name in given if given[name])} "
                "(--solver-steps is the number of steps)"
            )
        out, model = console(), self.open()
        flow = model.flow
        images = self.images(model, self.count).images.to(flow.device)

        def report(trial: Trial) -> None:
            out.print(f"d = {trial.divisor:<4g}  error {trial.error:.2e}", style="dim")

        trials = tune_step(flow, images, steps, report)
        best = trials[0]
        out.print(
            f"[bold]The best step is α = {best.step:.4f} = 1/{best.divisor:g}[/]: reconstruction "
            f"error {best.error:.2e} after {steps} steps in each layer, {len(images)} images\n"
            f"In the paper's way of writing, α = {best.divisor:g}: it prints the divisor. Here α "
            f"is the step, as in Algorithm 1: --solver fixed-point --step {best.step:.4f}"
        )
        if best.error > 1e-6:
            out.print("[yellow]No single step inverts this model well; the default solver does.[/]")
        tried = [asdict(trial) for trial in trials]
        return {**asdict(best), "images": len(images), "solver_steps": steps, "trials": tried}
