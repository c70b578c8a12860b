"""`mintnet tune-step`: the best step for Algorithm 1."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mintnet.cli.command import Count, DataCommand, File, check_positive
from mintnet.cli.output import PLOTS, Tasks, console, output_place, write

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
        from mintnet.analysis.reconstruction import affordable
        from mintnet.analysis.tuning import FLOOR, TRIALS, tune_step
        from mintnet.figures import draw_trials, render

        steps = 120 if self.solver_steps is None else self.solver_steps
        check_positive(count=self.count, solver_steps=steps)
        given = {"--solver": self.solver != "auto", "--step": self.step is not None}
        if any(given.values()):
            raise ValueError(
                "tune-step searches the step of Algorithm 1; leave out "
                f"{', '.join(name for name in given if given[name])} "
                "(--solver-steps is the number of steps)"
            )
        place = self.out and output_place(self.out, "", PLOTS)
        out, model = console(), self.open()
        flow = model.flow
        images = self.images(model, self.count).images.to(flow.device)
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
        best, tied = trials[0], sum(trial.error < FLOOR for trial in trials)
        out.print(
            f"[bold]The best step is α = {best.step:.4f} = 1/{best.divisor:g}[/]: reconstruction "
            f"error {best.error:.2e} after {steps} steps in each layer, {count} images\n"
            f"In the paper's way of writing, α = {best.divisor:g}: it prints the divisor. Here α "
            f"is the step, as in Algorithm 1: --solver fixed-point --step {best.step:.4f}"
        )
        if tied > 1:
            out.print(
                f"A tie: with {tied} of {len(trials)} steps the error is below {FLOOR:g}, which is "
                "rounding; of these, the step nearest to 1 is taken."
            )
        if best.error > 1e-6:
            out.print("[yellow]No single step inverts this model well; the default solver does.[/]")
        if place:
            plot = render(partial(draw_trials, trials=trials), kind=place.suffix.lower()[1:])
            write(out, place, plot)
        return {
            **asdict(best),
            "tied": tied,
            "images": count,
            "solver_steps": steps,
            "trials": [asdict(trial) for trial in trials],
        }
