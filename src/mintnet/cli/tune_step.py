"""`mintnet tune-step`: the best step for Algorithm 1."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mintnet.cli.command import Count, DataCommand, File
from mintnet.cli.output import PLOTS, Tasks, check_output, console, write_picture

if TYPE_CHECKING:
    from mintnet.analysis import Trial


@dataclass(kw_only=True)
class TuneStep(DataCommand):
    """Search for the step α = 1/d of Algorithm 1: d = 1 to 5 by 0.5, then by 0.05 near the best.

    The paper prints the divisor d as α. In Algorithm 1, and everywhere in mintnet, α is the step.
    The default solver needs no step; this is for --solver fixed-point.
    """

    count: Count = 128
    """How many images, from the first on."""
    time_limit: float = 600.0
    """Seconds, about: fewer images are taken where all need more. 0: no limit."""
    out: File = None
    """A plot of the search, as .png, .svg or .pdf; none if not given."""

    def run(self) -> dict[str, Any]:
        from mintnet.analysis.invertibility import affordable
        from mintnet.analysis.tuning import FLOOR, TRIALS, tune_step
        from mintnet.figures import draw_trials, render

        steps = 120 if self.solver_steps is None else self.solver_steps
        if self.count < 1 or steps < 1:
            raise ValueError("--count and --solver-steps are at least 1")
        other = None if self.solver == "auto" else self.solver
        given = {"--solver": other, "--step": self.step}
        if unused := [name for name, value in given.items() if value is not None]:
            raise ValueError(
                f"tune-step searches the step of Algorithm 1; leave out {', '.join(unused)} "
                f"(--solver-steps is the number of steps)"
            )
        if self.out is not None:
            check_output(self.out, PLOTS)
        out, model = console(), self.open()
        flow = model.flow
        images = self.images(model).images[: self.count].to(flow.device)
        count = affordable(flow, images, TRIALS * steps, self.time_limit)
        if count < len(images):
            out.print(
                f"On {count} of {len(images)} images, to take about {self.time_limit:.0f} s; "
                "--time-limit 0 takes all"
            )
        with Tasks(out) as task:
            progress, seen = task("searching"), list[float]()

            def report(trial: Trial) -> None:
                seen.append(trial.divisor)
                progress(len(seen), TRIALS)
                out.print(f"d = {trial.divisor:<4g}  error {trial.error:.2e}", style="dim")

            trials = tune_step(flow, images[:count], steps, report)
        best = trials[0]
        out.print(
            f"[bold]The best step is α = {best.step:.4f} = 1/{best.divisor:g}[/]: reconstruction "
            f"error {best.error:.2e} after {steps} steps in each layer, {count} images"
        )
        out.print(
            f"In the paper's way of writing, α = {best.divisor:g}: it prints the divisor. Here α "
            f"is the step, as in Algorithm 1: --solver fixed-point --step {best.step:.4f}"
        )
        tied = sum(trial.error < FLOOR for trial in trials)
        if tied > 1:
            out.print(
                f"A tie: with {tied} of {len(trials)} steps the error is below {FLOOR:g}, which is "
                "rounding; of these, the step nearest to 1 is taken."
            )
        if best.error > 1e-6:
            out.print("[yellow]No single step inverts this model well; the default solver does.[/]")
        path = None
        if self.out is not None:
            plot = render(partial(draw_trials, trials=trials), kind=self.out.suffix.lower()[1:])
            path, words = write_picture(plot, self.out)
            out.print(words)
        return {
            "step": best.step,
            "divisor": best.divisor,
            "error": best.error,
            "tied": tied,
            "images": count,
            "solver_steps": steps,
            "picture": path,
            "trials": [asdict(trial) for trial in trials],
        }
