"""`mintnet sample`, `reconstruct`, `interpolate`, `verify` and `tune-step`: models inverted."""

import io
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from rich.console import Console

from mintnet.analysis import codes_between, reconstruct, round_trip, tune_step, verify
from mintnet.analysis.layers import LayerRow, by, residual_check
from mintnet.analysis.reconstruction import DIVISORS, ITERATIONS, Trial
from mintnet.cli.command import (
    Count,
    DataCommand,
    DataOptions,
    File,
    FlawedResult,
    ModelCommand,
    Name,
    SolverCommand,
)
from mintnet.cli.model import OpenModel
from mintnet.cli.output import Tasks, console, output_place, print_table, strong, write
from mintnet.figures.report import draw_error_curves, paired_grid
from mintnet.figures.style import render
from mintnet.models import Flow
from mintnet.models.pictures import PICTURES, image_grid, save_picture
from mintnet.solvers import Solution

REMEDY = "Nothing was written. Use --solver auto."
SHOWN = 48


class Sample(SolverCommand, then="mintnet interpolate {model}"):
    """Draw new images from a model, each verified: as one picture, single files or an array."""

    count: Count = 64  # How many images.
    out: File = None
    """A picture of all (.png, .jpg, …), an array (.npy), or a folder for single PNG files (a name
    without an ending, or ending in /); samples.png if not given, numbered if that is taken."""
    temperature: float = 1.0  # Standard deviation of z; below 1, images are more typical.
    seed: int = 0  # Of the draws.
    label: Name = None  # Name or number of the class, if the model has them; else all by turns.
    batch_size: int = 64  # How many to invert at a time.

    def run(self) -> dict[str, Any]:
        place, out, opened, solver = self._place(), console(), self.open(), self.chosen_solver()
        flow, label = opened.flow, opened.label_of(self.label)
        z = flow.sample_latents(self.count, self.temperature, self.seed)
        images = f"{self.count} image{'s' * (self.count > 1)}"
        started = time.perf_counter()
        with Tasks(out) as task:
            bar, size = task(f"drawing {images}"), self.batch_size
            solution = flow.solve(z, solver, labels=label, batch_size=size, progress=bar)
        seconds = time.perf_counter() - started
        drawn = flow.to_images(solution.require(REMEDY)).cpu()
        out.print(f"{images} in {seconds:.1f} s")
        facts = _print_check(out, flow, solution)
        if _is_folder(place):
            for number, image in enumerate(drawn):
                single = image_grid(image[None], flow.levels, 1, width=1).convert("RGB")
                save_picture(single, place / f"{number:04d}.png")
            out.print(f"{len(drawn)} files in {strong(place)}")
        elif place.suffix.lower() == ".npy":
            buffer = io.BytesIO()
            np.save(buffer, drawn.numpy())
            about = f": uint8 of shape {by(drawn.shape)}, 0 to {flow.levels - 1}"
            write(out, place, buffer.getvalue(), about)
        else:
            write(out, place, image_grid(drawn, flow.levels))
        return {"picture": place, "seed": self.seed, "seconds": seconds, **facts}

    def _place(self) -> Path:
        if self.out is None or not _is_folder(self.out):
            return output_place(self.out, "samples.png", (*PICTURES, ".npy"))
        if self.out.is_dir() and any(self.out.iterdir()):
            raise ValueError(f"--out {self.out} is a folder with files in it; name a new folder")
        return output_place(self.out / "0000.png", "").parent


def _is_folder(place: Path) -> bool:
    kind = place.suffix.lower()
    return not kind or (place.is_dir() and kind not in (*PICTURES, ".npy"))


class Reconstruct(DataCommand, then="mintnet verify {model}"):
    """Encode test images and decode them again; the picture shows each above what came back."""

    count: Count = 128  # How many images, from the first on.
    batch_size: int = 64  # How many to invert at a time.
    out: File = None  # The picture; reconstructions.png if not given, numbered if that is taken.

    def run(self) -> dict[str, Any]:
        place = output_place(self.out, "reconstructions.png", PICTURES)
        out, model = console(), self.open()
        flow, solver = model.flow, self.chosen_solver()
        images = self.images(model, self.count).images.to(flow.device)
        with Tasks(out) as task:
            bar, size = task(f"{len(images)} images through the network and back"), self.batch_size
            result = reconstruct(flow, images, solver, batch_size=size, progress=bar)
        result.solution.require(REMEDY)
        exact, total, errors = result.exact, len(images), result.errors
        colour = "green" if exact == total else "red"
        out.print(f"{exact} of {total} images came back byte for byte", style=colour)
        words = f"mean ‖x − y‖² / D = {errors.mean():.2e}, worst {errors.max():.2e}"
        out.print(f"{words}, with pixels in [0, 1]", markup=False)
        facts = _print_check(out, flow, result.solution)
        about = f" ({SHOWN} of {total} are shown)" if total > SHOWN else ""
        path = write(out, place, paired_grid(result, flow.levels, SHOWN), about)
        return {"picture": path, **facts, **result.to_dict()}


class Interpolate(DataCommand, then="mintnet report {model}"):
    """Draw the 8 × 8 images between four: angles 0, π/14, …, 7π/14 in both directions."""

    places: Annotated[tuple[int, int, int, int] | None, tyro.conf.arg(name="images")] = None
    """Which four images, by their places in the data set; drawn with --seed if not given."""
    seed: int = 0  # Draws the four images.
    out: File = None  # The picture; interpolation.png if not given, numbered if that is taken.

    def run(self) -> dict[str, Any]:
        place = output_place(self.out, "interpolation.png", PICTURES)
        out, model = console(), self.open()
        flow, solver, data = model.flow, self.chosen_solver(), self.images(model)
        drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.seed))
        chosen = list(self.places) if self.places else drawn[:4].tolist()
        names = ", ".join(map(str, chosen))
        if len(chosen) < 4 or not all(0 <= place < len(data) for place in chosen):
            raise ValueError(f"--images takes four places from 0 to {len(data) - 1}; got {names}")
        with Tasks(out) as task, torch.no_grad():
            z = codes_between(flow, flow.encode(data.images[chosen].to(flow.device)))
            solution = flow.solve(z, solver, progress=task("64 images between four"))
        between = flow.to_images(solution.require(REMEDY))
        out.print(f"Between images {names} of {data.name}, in the corners.")
        facts = _print_check(out, flow, solution)
        path = write(out, place, image_grid(between, flow.levels, 8))
        return {"picture": path, "images": chosen, **facts}


class Verify(DataCommand, then="mintnet report {model}"):
    """Invert test images layer by layer, and plot the error of Algorithm 1 over its steps.

    For a classifier: map features back in float64 and in float32.
    """

    count: Count = 128  # How many images, from the first on.
    divisors: tuple[float, ...] = DIVISORS  # Draw a curve for each of these d: α = 1/d.
    iterations: tuple[int, ...] = ITERATIONS  # Steps in each layer, one for each point of a curve.
    curve_images: int = 16  # How many of the images the curves are of.
    out: File = None  # The plot of a density model: .png, .svg, .pdf; else invertibility.png.

    def run(self) -> dict[str, Any]:
        opened = self.open()
        return self._flow(opened) if isinstance(opened.model, Flow) else self._classifier(opened)

    def _flow(self, opened: OpenModel) -> dict[str, Any]:
        if not self.iterations or min(self.iterations) < 0:
            raise ValueError("--iterations are one or more numbers from 0 on")
        if not self.divisors or min(self.divisors) <= 0.5:
            raise ValueError("--divisors are at least one number above 0.5: α < 2 (Theorem 2)")
        place = output_place(self.out, "invertibility.png", (".png", ".svg", ".pdf"))
        out, solver, flow = console(), self.chosen_solver(), opened.flow
        images = self.images(opened, self.count).images.to(flow.device)
        with Tasks(out) as task:
            bar = task(f"{len(images)} images there and back, then Algorithm 1")
            options = self.divisors, self.iterations, self.curve_images
            found = verify(flow, images, solver, *options, bar)
        back = found.reconstruction
        _print_layers(out, found.layers)
        facts = _print_check(out, flow, back.solution)
        exact = f"{back.exact} of {len(images)} images byte for byte"
        out.print(f"{exact}, mean ‖x − y‖² / D = {float(back.errors.mean()):.2e}")
        for curve in found.curves:
            words = f"error {curve.centre[-1]:.2e} after {curve.iterations[-1]} steps"
            out.print(f"Algorithm 1, {curve.label}, {curve.errors.shape[1]} images: {words}")
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
                words = f"so --{name.replace('_', '-')} has no meaning"
                raise ValueError(f"{self.model} is a classifier, which has no curves, {words}")
        out, solver, trips = console(), self.chosen_solver(), []
        images = self.images(opened, self.count).images
        with Tasks(out) as task:
            for dtype in (torch.float64, torch.float32):
                progress = task(f"features and back in {dtype}")
                trips.append(round_trip(model, images, dtype, solver, progress=progress))
        _print_layers(out, trips[0].layers)
        for trip in trips:
            out.print(str(trip), style="green" if trip.verified == trip.images else "red")
        if trips[1].byte_exact < trips[0].byte_exact:
            words = "Rounding of features grows on the way back, too much for float32 here"
            out.print(f"{words}: take float64 (clf.double()) to get pictures back.")
        figures = {trip.precision: asdict(trip) for trip in trips}
        lost = {trip.precision: trip.images - trip.verified for trip in trips}
        failed = [f"{n} of {len(images)} inversions in {name}" for name, n in lost.items() if n]
        if failed:
            words = "use --solver auto" if self.solver != "auto" else "do not rely on these images"
            raise FlawedResult(f"{' and '.join(failed)} are not verified: {words}", figures)
        return figures


class TuneStep(
    DataOptions, ModelCommand, then="mintnet verify {model} --solver fixed-point --step {step:.6}"
):
    """Search for the step α = 1/d of Algorithm 1: d = 1 to 5 by 0.5, then by 0.05 near the best.

    The paper prints the divisor d as α. In Algorithm 1, and everywhere in mintnet, α is the step.
    The default solver needs no step; this is for --solver fixed-point.
    """

    count: Count = 16  # How many images, from the first on.
    solver_steps: int = 120  # Steps of Algorithm 1 in each layer.

    def run(self) -> dict[str, Any]:
        if (steps := self.solver_steps) < 1:
            raise ValueError(f"--solver-steps is at least 1; got {steps}")
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
            f"Take --solver fixed-point --step {best.step:.4f}; the paper prints the divisor as α"
        )
        if best.error > 1e-6:
            out.print("[yellow]No single step inverts this model well; the default solver does.[/]")
        tried = [asdict(trial) for trial in trials]
        return {**asdict(best), "images": len(images), "solver_steps": steps, "trials": tried}


def _print_check(out: Console, flow: Flow, solution: Solution) -> dict[str, Any]:
    """Say how the residual check of an inversion went, and give its figures back."""
    facts = residual_check(flow.net, solution)
    colour = "green" if facts["verified"] == facts["samples"] else "red"
    line = f"[{colour}]{facts['verified']} of {facts['samples']} inversions verified[/]"
    line += f": end-to-end residual {facts['end_to_end_residual']:.1e}"
    if facts["worst_layer_residual"] is not None:
        line += f", worst layer {facts['worst_layer_residual']:.1e} (layer {facts['worst_layer']})"
    out.print(f"{line}, as shares of the largest |z|")
    return facts


def _print_layers(out: Console, rows: Sequence[LayerRow]) -> None:
    columns = ("layer", "what it is", "steps (median)", "most", "worst residual", "failures")
    cells = [
        (r.number, r.name, f"{r.median_steps:g}", r.most_steps, f"{r.residual:.1e}", r.failures)
        for r in rows
    ]
    print_table(out, "Layer by layer", columns, cells)
