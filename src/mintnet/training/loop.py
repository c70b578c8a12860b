"""The training loop: `Run.fit`, and what happens between two steps."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mintnet.data import ImageData
from mintnet.models.at_work import FEWEST
from mintnet.models.flow import Flow
from mintnet.models.storage import save_scores
from mintnet.precision import true_float32
from mintnet.solvers import InversionError
from mintnet.training.data import Order, describe, part_of, stream
from mintnet.training.devices import SMALL
from mintnet.training.folder import RunError, RunFolder
from mintnet.training.interrupt import Interruption
from mintnet.training.optimizers import learning_rate
from mintnet.training.progress import Progress
from mintnet.training.recipe import Recipe
from mintnet.training.samples import Sampler, save_grid
from mintnet.training.step import Outcome, Step
from mintnet.training.task import Batch, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CHECKPOINT_SECONDS = 30.0
PATIENCE = 20
"""Steps in a row that may be left out since the loss or its gradient is not finite."""
SLOW_VALIDATION = ((SMALL, None), (1024, 256), (math.inf, 64))
"""On a CPU: for images of up to so many dimensions, the most held-out images that are used."""


class Run:
    """A run, new or from the ``state`` of a checkpoint; `fit` is the loop."""

    def __init__(
        self,
        recipe: Recipe,
        data: ImageData,
        order: Order,
        task: Task,
        folder: RunFolder,
        progress: Progress,
        fabric: Fabric,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.recipe, self.task, self.folder, self.progress = recipe, task, folder, progress
        self.fabric, device = fabric, fabric.device
        self.images, self.labels = data.images, data.labels
        self.order, self.total = order, recipe.steps(order.per_epoch)
        if fabric.world_size > order.batch_size:
            raise RunError(
                f"a batch of {order.batch_size} images cannot be split over {fabric.world_size} "
                f"processes; use fewer devices or a larger batch size"
            )
        fabric.to_device(task.model).train()
        captured = task.fast is not None and fabric.world_size == 1
        self.step = Step(task, recipe, order.batch_size, fabric, captured)
        if state is not None:
            self.step.load_state_dict(state)
        state = state or {"step": 0, "best": None, "best_step": 0, "seconds": 0.0}
        self.done, self.best, self.best_step = state["step"], state["best"], state["best_step"]
        self.seconds: float = state["seconds"]
        """Time spent in training steps."""
        self.validated = order.held
        if device.type == "cpu":
            size = data.images[0].numel()
            self.validated = order.held[: next(n for most, n in SLOW_VALIDATION if size <= most)]
        if device.type == "cuda" and self.images.numel() < torch.cuda.mem_get_info(device)[0] // 3:
            self.images = self.images.to(device)
            self.labels = None if self.labels is None else self.labels.to(device)
        self.about = {"preset": recipe.preset, "data": describe(recipe, data)}
        self.train: dict[str, float] = {}
        self.validation: dict[str, float] = {}
        self.left_out = 0  # of the last steps in a row
        self.interruption, self.sampler = Interruption(), Sampler()
        self._sums, self._seen, self._since = dict[str, float](), 0, self.seconds
        self._timed: list[float] | None = []
        self._saved_at = time.monotonic()
        self._events: Any = None
        if recipe.tensorboard and fabric.is_global_zero:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(folder.path / "tensorboard")
        progress.note(
            f"{task.model.parameter_count():,} parameters; {self.total:,} "
            f"step{'s' * (self.total != 1)} of {order.batch_size} images on {device}"
        )
        if some := len(order.held) - len(self.validated):
            progress.note(f"{some:,} held-out images are left out of validation: it is slow")

    def fit(self) -> None:
        """Train to the end, or to Ctrl-C."""
        fabric, order = self.fabric, self.order
        self.progress.start(self.done, self.total)
        with self.interruption.noting():
            while self.done < self.total:
                began = time.perf_counter()
                places = part_of(order(self.done), fabric.global_rank, fabric.world_size)
                outcome = self.step(
                    *self._look_up(places),
                    epoch=self.done // order.per_epoch,
                    learning_rate=learning_rate(self.recipe, self.done, self.total),
                    number=self.done,
                    stop=self.interruption.asked,
                )
                self.done += 1
                self._count(outcome, time.perf_counter() - began)
                last = self.done == self.total
                if last or self.done % min(100, order.per_epoch) == 0:
                    self._report()
                if last or self.done % order.per_epoch == 0:
                    self._end_epoch()
                if last or self._checkpoint_due():
                    self._save()  # before samples, which take time
                if last or self._samples_due():
                    self._sample(last)
                # several processes stop at the same step, which they agree on
                asked = outcome.stop if fabric.world_size > 1 else self.interruption.asked
                if asked and not last:
                    self._save()
                    raise KeyboardInterrupt(
                        f"interrupted; step {self.done} is saved, and --resume goes on from there"
                    )

    def _look_up(self, places: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        places = places.to(self.images.device)
        labels = None if self.labels is None else self.labels[places]
        return self.images[places], labels, places

    def _count(self, outcome: Outcome, seconds: float) -> None:
        """Take the figures of a step in; stop where there is nothing to go on with."""
        self.seconds += seconds
        if not outcome.finite:
            self._give_up("the weights are no longer finite")
        if outcome.left_out:
            self.left_out += 1
            self._write("left out", {"in_a_row": self.left_out})
            if self.left_out == 1:
                self.progress.note(f"step {self.done} is left out: loss or gradient not finite")
            if self.left_out > min(PATIENCE, self.total // 10):
                loss = outcome.means["loss"]
                self._give_up(f"the loss is {loss:g}, its gradient {outcome.norm:g}")
        else:
            self.left_out = 0
            for name in self.task.figures:
                value = outcome.means[name] * self.order.batch_size
                self._sums[name] = self._sums.get(name, 0.0) + value
            self._seen += self.order.batch_size
        self.progress.step(self.done, self._shown())
        self._estimate(seconds)

    def _estimate(self, seconds: float) -> None:
        """Say once how long the run will take; the first two steps are slower than the others."""
        if self._timed is None:
            return
        self._timed.append(seconds)
        rest = self._timed[2:]
        if sum(rest) < 2.0 or len(rest) < 3:
            return
        self._timed, mean = None, sum(rest) / len(rest)
        if (left := mean * (self.total - self.done)) > 5:
            words = f"{left:.0f} seconds" if left < 100 else f"{left / 60:.0f} minutes"
            words = words if left < 6000 else f"{left / 3600:.1f} hours"
            self.progress.note(f"about {words} to go, {mean:.2g} s a step")

    def _shown(self) -> dict[str, float]:
        means = {name: total / self._seen for name, total in self._sums.items()}
        return {**means, "images/s": self._seen / max(self.seconds - self._since, 1e-9)}

    def _report(self) -> None:
        """A row about the steps since the last one."""
        self.train = self._shown()
        rate = learning_rate(self.recipe, self.done - 1, self.total)
        self._write("train", {**self.train, "learning_rate": rate})
        self._sums, self._seen, self._since = {}, 0, self.seconds

    def _end_epoch(self) -> None:
        shown = dict(self.train)
        if len(self.order.held):
            self.validation = self._validate()
            self._write("validation", {**self.validation, "images": len(self.validated)})
            shown.update({f"validation {k}": v for k, v in self.validation.items()})
            figure = self.validation[self.task.figures[0]]
            # of equals the newest: a share of mistakes takes few values
            if math.isfinite(figure) and (self.best is None or figure <= self.best):
                self.best, self.best_step = figure, self.done
                self._save_model("best")
        epoch, epochs = (-(-step // self.order.per_epoch) for step in (self.done, self.total))
        self.progress.epoch(epoch, epochs, shown)

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        """Figures of the held-out images, in true float32 and under noise that never changes."""
        task, fabric, names = self.step.averaged, self.fabric, self.task.figures
        own = part_of(self.validated, fabric.global_rank, fabric.world_size)
        sums = torch.zeros(len(names), dtype=torch.float64)
        seed = stream(0, "validation noise")
        task.model.eval()
        with true_float32():
            for places in own.split(max(self.order.batch_size, 32)):
                images, labels, index = fabric.to_device(self._look_up(places))
                measured = task.measure(Batch(images, labels, index, seed, draw=0))
                sums += torch.stack([measured[name].double().sum() for name in names]).cpu()
        task.model.train()
        sums = fabric.all_reduce(sums.to(fabric.device), reduce_op="sum")  # type: ignore[assignment]
        return dict(zip(names, (sums / len(self.validated)).tolist(), strict=True))

    def _checkpoint_due(self) -> bool:
        if (every := self.recipe.checkpoint_every) is None:
            return time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS
        return every > 0 and self.done % every == 0

    def _samples_due(self) -> bool:
        if (every := self.recipe.sample_every) is None:
            every = self.total // 10 if self.total >= 20 else self.total
        return every > 0 and self.done % every == 0

    def _sample(self, last: bool) -> None:
        flow, images = self.step.averaged.model, None
        wanted = isinstance(flow, Flow) and self.recipe.sample_every != 0
        if not wanted or not self.fabric.is_global_zero:
            return
        with self.interruption.cancels():
            try:
                images = self.sampler.draw(flow, self.seconds, last)
            except InversionError as error:
                reason = str(error).splitlines()[0]
                self._write("samples", {"error": reason})
                self.progress.note(f"no samples at step {self.done}: {reason}")
        if images is not None:
            save_grid(self.folder.samples / f"step_{self.done:07d}.png", images, flow.levels)

    def _save(self) -> None:
        """The newest weights as a model, and the checkpoint."""
        self._saved_at = time.monotonic()
        if not self.fabric.is_global_zero:
            return
        if not self.step.is_finite():
            self._give_up("the weights are no longer finite")
        self._save_model("last")
        self.folder.write_checkpoint({**self.state(), **self.step.state_dict()})

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the tensors of the step."""
        state = {"step": self.done, "best": self.best, "best_step": self.best_step}
        return {**state, "seconds": self.seconds}

    def _save_model(self, name: str) -> None:
        """The EMA weights, or the weights where there is no average, as a model folder."""
        if self.fabric.is_global_zero:
            about = {**self.about, "validation": self.recipe.validation, "step": self.done}
            self.step.averaged.model.save(self.folder.path / name, **about)

    def keep_scores(self) -> None:
        """Scores of held-out images beside the weights, for `Flow.score`; a GPU has time for all.

        Without a fair number of held-out images there are none.
        """
        places = self.order.held if self.fabric.device.type == "cuda" else self.order.held[:500]
        known = self.fabric.is_global_zero and isinstance(self.task.model, Flow)
        for folder in (self.folder.last, self.folder.best):
            if known and len(places) >= FEWEST and folder.exists():
                flow = Flow.load(folder).to(self.fabric.device)
                flow.keep_scores(self._look_up(places)[0])
                save_scores(folder, flow.scores)

    def _give_up(self, reason: str) -> None:
        last = self.folder.last
        if not last.exists() and self.step.is_finite():
            self._save_model("last")
        kept = f"the weights saved last are in {last}" if last.exists() else "no weights are saved"
        raise RunError(
            f"{reason} at step {self.done}, so the run stops; {kept}: try a lower learning rate "
            f"or clip the gradient, in another run"
        )

    def _write(self, kind: str, figures: dict[str, Any]) -> None:
        """A row of metrics.jsonl, and the same for TensorBoard where that is asked for."""
        if not self.fabric.is_global_zero:
            return
        epoch = self.done / self.order.per_epoch
        self.folder.add_metrics({"kind": kind, "step": self.done, "epoch": epoch, **figures})
        for name, value in figures.items() if self._events is not None else ():
            if isinstance(value, float):
                self._events.add_scalar(f"{kind}/{name}", value, self.done)
