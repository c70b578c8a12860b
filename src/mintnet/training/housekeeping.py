"""What a run does between its steps, for people and for disks; none of it changes the weights."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, Trainer

from mintnet.solvers import InversionError
from mintnet.training.cadence import Cadence
from mintnet.training.checkpoint import Checkpoint
from mintnet.training.folder import RunFolder
from mintnet.training.interrupt import Interruption, Stopped
from mintnet.training.meter import Meter
from mintnet.training.module import FAR_OUT, NotFiniteError, TrainingModule
from mintnet.training.pictures import save_grid
from mintnet.training.progress import Progress
from mintnet.training.schedule import LESS, learning_rate

SAMPLE_SEED = 1  # the same z each time, so that grids can be compared


class Housekeeping(Callback):  # type: ignore[misc, unused-ignore]
    """Reports, validates, draws samples and saves. Files are the first process's alone.

    Args:
        folder: where the files go.
        cadence: how often.
        progress: whom to tell.
        extra: goes into the configuration of the models saved.
        start: the state the run goes on from.
    """

    def __init__(
        self,
        folder: RunFolder,
        cadence: Cadence,
        progress: Progress,
        extra: Mapping[str, Any],
        start: Checkpoint | None = None,
    ) -> None:
        start = start or Checkpoint()
        self.folder, self.cadence, self.progress, self.extra = folder, cadence, progress, extra
        self.best, self.best_step = start.best, start.best_step
        self.meter = Meter(start.seconds)
        self.saved = time.monotonic()
        self.train: dict[str, float] = {}
        self.validation: dict[str, float] = {}
        self._in_a_row = 0
        self.interruption = Interruption(wanted=False)
        """Asked after each step."""

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        self.meter = Meter(self.meter.seconds)
        self.progress.note(self._introduction(module))
        self.progress.start(module.step, module.total)

    def on_train_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Whatever is due after this step."""
        step, done = module.step, module.step == module.total
        if module.left_out or module.has_fallen or module.gave_in:
            self._leave_out(trainer, module)
        else:
            self.meter.add(module.means, module.batch)
        self.progress.step(step, self._shown())
        with self.meter.paused():
            if done or step % self.cadence.report_steps(module.steps_per_epoch) == 0:
                self._report(trainer, module)
            if done or step % module.steps_per_epoch == 0:
                self._end_epoch(trainer, module, done)
            if not trainer.is_global_zero:
                return
            due = done or self.cadence.checkpoint_due(step, time.monotonic() - self.saved)
            if due:  # before samples, which can take minutes
                self.save(module)
            every = self.cadence.sample_steps(module.total)
            if module.task.draws_samples and every and (done or step % every == 0):
                self._sample(trainer, module)
            stopping = self.interruption.asked and not done
            if stopping and not due:
                self.save(module)
        if stopping:
            raise Stopped(f"interrupted; step {step} is saved, and --resume goes on from there")

    def save(self, module: TrainingModule) -> None:
        """The newest weights as a model, and the checkpoint; raises if they are not finite."""
        if not module.is_finite():
            raise NotFiniteError("the weights are no longer finite")
        self.save_model(module, "last")
        state = module.state()
        state.best, state.best_step = self.best, self.best_step
        state.seconds = self.meter.seconds
        state.write(self.folder.checkpoint)
        self.saved = time.monotonic()

    def save_model(self, module: TrainingModule, name: str) -> None:
        """The weights that count (averaged, where there is an average) as a model folder."""
        with module.average.applied(module.model):
            module.task.save(self.folder.path / name, **self.extra, step=module.step)

    def _introduction(self, module: TrainingModule) -> str:
        data = self.extra["data"]["version"]
        weights = module.task.describe()["parameters"]
        return (
            f"{data}: {len(module.places):,} training and {len(module.held):,} held-out images; "
            f"{weights:,} parameters; {module.total:,} steps of {module.batch} images on "
            f"{module.device}"
        )

    def _leave_out(self, trainer: Trainer, module: TrainingModule) -> None:
        """Say so; the time counts, while figures that are far out would hide all others."""
        self.meter.add({}, 0)
        self._in_a_row = in_a_row = module.left_out or self._in_a_row + 1
        self._write(trainer, module, "left out", {"in_a_row": in_a_row})
        if module.gave_in:
            self.progress.note(
                f"step {module.step}: {in_a_row} losses in a row were far above the usual; from "
                f"here on they are taken as they are"
            )
        if module.left_out == 1:
            far = math.isfinite(module.means["loss"]) and module.means["loss"] > module.bound
            why = "is far above the usual" if far else "or gradient is not finite"
            self.progress.note(f"step {module.step} is left out: its loss {why}")
        if module.has_fallen:
            self._write(trainer, module, "fell back", {"falls": module.falls})
            self.progress.note(
                f"step {module.step}: {in_a_row} steps in a row were left out; going on from the "
                f"averaged weights, with {LESS**module.falls:.2g} of the learning rate"
            )

    def _shown(self) -> dict[str, float]:
        means = self.meter.means()
        means = {n: v for n, v in means.items() if n != "loss" and (n != FAR_OUT or v)}
        return {**means, "images/s": self.meter.rate()}

    def _report(self, trainer: Trainer, module: TrainingModule) -> None:
        """A line of the metrics about the steps since the last one."""
        self.train = self._shown()
        recipe, last = module.plan.recipe, module.step - 1
        rate = learning_rate(recipe, last, module.total, module.falls, module.fell_at)
        self._write(trainer, module, "train", {**self.train, "learning_rate": rate})
        self.meter.reset()

    def _end_epoch(self, trainer: Trainer, module: TrainingModule, done: bool) -> None:
        epoch = -(-module.step // module.steps_per_epoch)
        shown, every = dict(self.train), self.cadence.validation
        if len(module.held) and every and (done or epoch % every == 0):
            if module.is_slow:
                some, all_held = len(module.validated), len(module.held)
                self.progress.note(f"validating on {some:,} of {all_held:,} held-out images")
            figures = module.validate()
            self.validation = {k: v for k, v in figures.items() if k != "loss"}
            self._write(
                trainer, module, "validation", {**self.validation, "images": len(module.validated)}
            )
            shown.update({f"validation {k}": v for k, v in self.validation.items()})
            figure = figures[module.task.figure_names[0]]
            # of equals the newest: a share of mistakes takes few values
            if math.isfinite(figure) and (self.best is None or figure <= self.best):
                self.best, self.best_step = figure, module.step
                if trainer.is_global_zero:
                    self.save_model(module, "best")
        self.progress.epoch(epoch, module.epochs, shown)

    def _sample(self, trainer: Trainer, module: TrainingModule) -> None:
        count = self.cadence.sample_count or (16 if module.is_slow else 64)
        if module.is_slow:
            self.progress.note(f"drawing {count} samples; --sample-every 0 draws none")
        try:
            with module.average.applied(module.model):
                images = module.task.samples(count, SAMPLE_SEED)
        except InversionError as error:
            reason = str(error).splitlines()[0]
            self._write(trainer, module, "samples", {"error": reason})
            self.progress.note(f"no samples at step {module.step}: {reason}")
            return
        if images is not None:
            levels = getattr(module.model, "levels", 256)
            save_grid(self.folder.samples / f"step_{module.step:07d}.png", images, levels)

    def _write(
        self, trainer: Trainer, module: TrainingModule, kind: str, figures: dict[str, Any]
    ) -> None:
        if not trainer.is_global_zero:
            return
        epoch = module.step / module.steps_per_epoch
        self.folder.append_metrics({"kind": kind, "step": module.step, "epoch": epoch, **figures})
        numbers = {f"{kind}/{k}": v for k, v in figures.items() if isinstance(v, float)}
        if trainer.logger is not None:
            trainer.logger.log_metrics(numbers, step=module.step)
