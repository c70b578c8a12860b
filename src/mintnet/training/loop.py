"""The training loop: `Run.fit`, and what happens between two steps."""

import math
import os
import signal
import threading
import time
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mintnet.data import ImageData
from mintnet.data.dataset import reason
from mintnet.models.pictures import image_grid, save_picture
from mintnet.precision import true_float32
from mintnet.solvers import InversionError
from mintnet.training.data import Order, stream
from mintnet.training.devices import SMALL, is_first_process
from mintnet.training.folder import OTHER, RunError, RunFolder
from mintnet.training.optimizers import learning_rate
from mintnet.training.output import Progress, Sampler, figures_in_words
from mintnet.training.recipe import Recipe
from mintnet.training.step import Batch, Outcome, Step, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CHECKPOINT_SECONDS = 30.0
PATIENCE = 20  # steps in a row that may be left out since the loss or its gradient is not finite


@dataclass
class Reached:
    """How far a run has come; with the tensors of the step it is what a checkpoint keeps."""

    step: int = 0
    best: float | None = None
    best_step: int = 0
    seconds: float = 0.0  # in training steps
    left_out: int = 0  # of the last steps, in a row
    sums: dict[str, float] = field(default_factory=dict)  # of figures since the last report,
    seen: int = 0  # over so many images,
    since: float = 0.0  # which was made at so many seconds


@dataclass
class Run:
    """A run, new or from the ``state`` of a checkpoint; `fit` is the loop."""

    recipe: Recipe
    data: ImageData
    facts: dict[str, Any]
    order: Order
    task: Task
    folder: RunFolder
    progress: Progress
    fabric: "Fabric"
    state: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        recipe, order, task, fabric = self.recipe, self.order, self.task, self.fabric
        device, self.total = fabric.device, recipe.steps(order.per_epoch)
        self.images, self.labels = self.data.images, self.data.labels
        if (world := fabric.world_size) > order.batch_size:
            words = f"a batch of {order.batch_size} images cannot be split over {world} processes"
            raise RunError(f"{words}; use fewer devices or a larger batch size")
        if recipe.tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise RunError("no TensorBoard: pip install 'mintnet[tensorboard]'") from None
            self._writer = SummaryWriter
        fabric.to_device(task.model).train()
        captured = task.fast is not None and device.type == "cuda" and world == 1
        self.step = Step(task, recipe, order.batch_size, fabric, captured)
        state = self.state or {}
        try:
            if state:
                self.step.load_state_dict(state)
        except (ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
            names = f"{self.folder.checkpoint} is not of the network in {self.folder.run_json}"
            names += f" ({reason(error)}), or of an earlier version of mintnet"
            raise RunError(f"{names}; put back its own, or {OTHER}") from error
        self.at = Reached(**{f.name: state[f.name] for f in fields(Reached) if f.name in state})
        self.validated = order.held
        if device.type == "cpu" and (size := self.images[0].numel()) > SMALL:
            self.validated = order.held[: 256 if size <= 1024 else 64]  # validation is slow there
        if device.type == "cuda" and self.images.numel() < torch.cuda.mem_get_info(device)[0] // 3:
            self.images = self.images.to(device)
            self.labels = None if self.labels is None else self.labels.to(device)
        self.train: dict[str, float] = {}
        self.validation: dict[str, float] = {}
        self.sampler, self.asked, self.drawing = Sampler(), False, False
        self._saved_at = time.monotonic()
        self._events: Any = None

    def fit(self) -> None:
        """Train to the end, or to Ctrl-C.

        The first one is noted until the step is done: a step that is broken off would leave weights
        and moments between two steps. A second one ends the run at once.
        """
        main = threading.current_thread() is threading.main_thread()  # others get no signals
        before = signal.signal(signal.SIGINT, self._interrupted) if main else None
        try:
            self._fit()
        finally:
            if main:
                signal.signal(signal.SIGINT, before or signal.default_int_handler)

    def _interrupted(self, *_: object) -> None:
        if self.asked or self.drawing:
            raise KeyboardInterrupt
        self.asked = True
        if is_first_process():  # print could be interrupted in the middle of a line, and refuse
            os.write(2, b"\nstopping after this step, with a checkpoint; Ctrl-C again: at once\n")

    def _fit(self) -> None:
        recipe, fabric, order, total = self.recipe, self.fabric, self.order, self.total
        if recipe.tensorboard and fabric.is_global_zero:
            self._events = self._writer(self.folder.path / "tensorboard")
        size = f"{self.task.model.parameter_count():,} parameters"
        steps = f"{total:,} step{'s' * (total != 1)} of {order.batch_size} images"
        self.progress.note(f"{size}; {steps} on {fabric.device}")
        if some := len(order.held) - len(self.validated):
            self.progress.note(f"{some:,} held-out images are left out of validation: it is slow")
        if lacks_samples(self.folder, recipe, self.at.step, total):
            self._sample()
        self._report = self.progress("training")
        for number in range(self.at.step, total):
            began, rate = time.perf_counter(), learning_rate(recipe, number, total)
            places = order(number).tensor_split(fabric.world_size)[fabric.global_rank]
            batch, epoch = self._look_up(places), number // order.per_epoch
            outcome = self.step(*batch, epoch, rate, number=number, stop=self.asked)
            self.at.step = step = number + 1
            self.at.seconds += time.perf_counter() - began
            self._count(outcome)
            last = step == total
            if last or step % min(100, order.per_epoch) == 0:
                self.train = self._shown()
                self._write("train", {**self.train, "learning_rate": rate})
                self.at.sums, self.at.seen, self.at.since = {}, 0, self.at.seconds
            if last or step % order.per_epoch == 0:
                self._end_epoch()
            every, waited = recipe.checkpoint_every, time.monotonic() - self._saved_at
            due = waited >= CHECKPOINT_SECONDS if every is None else every and step % every == 0
            if last or due:
                self._save()  # before samples, which take time
            if samples_due(recipe, step, total):
                self._sample()
            # several processes stop at the same step, which they agree on
            if not last and (outcome.stop if fabric.world_size > 1 else self.asked):
                self._save()
                raise KeyboardInterrupt(f"interrupted; step {step} is saved, and --resume goes on")

    def _look_up(self, places: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        places = places.to(self.images.device)
        return self.images[places], None if self.labels is None else self.labels[places], places

    def _count(self, outcome: Outcome) -> None:
        """Take the figures of a step in; stop where there is nothing to go on with."""
        if not outcome.finite:
            self._give_up("the weights are no longer finite")
        if outcome.left_out:
            self.at.left_out += 1
            self._write("left out", {"in_a_row": self.at.left_out})
            if self.at.left_out == 1:
                self.progress.note(f"step {self.at.step} is left out: loss or gradient not finite")
            if self.at.left_out > min(PATIENCE, self.total // 10):
                loss = outcome.means["loss"]
                self._give_up(f"the loss is {loss:g}, its gradient {outcome.norm:g}")
        else:
            size, sums = self.order.batch_size, self.at.sums
            for name in self.task.figures:
                sums[name] = sums.get(name, 0.0) + outcome.means[name] * size
            self.at.seen, self.at.left_out = self.at.seen + size, 0
        shown, step = figures_in_words(self._shown() | self._validated_shown()), self.at.step
        self._report(step, self.total, f"step {step:,}/{self.total:,}  {shown}")

    def _shown(self) -> dict[str, float]:
        means = {name: total / self.at.seen for name, total in self.at.sums.items()}
        return {**means, "images/s": self.at.seen / max(self.at.seconds - self.at.since, 1e-9)}

    def _validated_shown(self) -> dict[str, float]:
        return {f"validation {name}": value for name, value in self.validation.items()}

    def _end_epoch(self) -> None:
        if len(self.order.held):
            self.validation = self._validate()
            self._write("validation", {**self.validation, "images": len(self.validated)})
            figure = self.validation[self.task.figures[0]]
            # of equals the newest: a share of mistakes takes few values
            if math.isfinite(figure) and (self.at.best is None or figure <= self.at.best):
                self.at.best, self.at.best_step = figure, self.at.step
                self._save_model("best")
        if self.progress.plain:
            epoch, epochs = (-(-n // self.order.per_epoch) for n in (self.at.step, self.total))
            shown = figures_in_words(self.train | self._validated_shown())
            left = self.progress.left if self.at.step < self.total else ""
            self.progress.note(f"epoch {epoch}/{epochs}  {shown}  {left}".rstrip())

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        """Figures of the held-out images, in true float32 and under noise that never changes."""
        task, fabric, names = self.step.averaged, self.fabric, self.task.figures
        own = self.validated.tensor_split(fabric.world_size)[fabric.global_rank]
        sums, seed = torch.zeros(len(names), dtype=torch.float64), stream(0, "validation noise")
        task.model.eval()
        with true_float32():
            for places in own.split(max(self.order.batch_size, 32)):
                images, labels, index = fabric.to_device(self._look_up(places))
                measured = task.measure(Batch(images, labels, index, seed, draw=0))
                sums += torch.stack([measured[name].double().sum() for name in names]).cpu()
        task.model.train()
        sums = fabric.all_reduce(sums.to(fabric.device), reduce_op="sum")  # type: ignore[assignment]
        return dict(zip(names, (sums / len(self.validated)).tolist(), strict=True))

    def _sample(self) -> None:
        """A grid of samples; already the first Ctrl-C ends it, and the run goes on to its save."""
        if not self.fabric.is_global_zero:
            return
        flow, told = self.step.averaged.model, dict[str, Any](images=0)
        self.drawing = True
        try:
            images = self.sampler.draw(flow, self.at.seconds, self.at.step == self.total)
            if images is not None:
                told = {"images": len(images)}
                place = self.folder.samples / f"step_{self.at.step:07d}.png"
                save_picture(image_grid(images, flow.levels), place)
        except InversionError as error:
            told["error"] = str(error).splitlines()[0]
        except KeyboardInterrupt:
            self.asked = True
            return
        finally:
            self.drawing = False
        if "error" in told:
            self.progress.note(f"no samples at step {self.at.step}: {told['error']}")
        self._write("samples", told)

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        self._save_model("last")
        if self.fabric.is_global_zero:
            self.folder.write_checkpoint({**asdict(self.at), **self.step.state_dict()})

    def _save_model(self, name: str) -> None:
        """The EMA weights, or the weights where there is no average, as a model folder."""
        if self.fabric.is_global_zero:
            about = {"preset": self.recipe.preset, "validation": self.recipe.validation}
            place, step = self.folder.path / name, self.at.step
            self.step.averaged.model.save(place, **about, data=self.facts, step=step)

    def _give_up(self, reason: str) -> None:
        last = self.folder.last
        if not last.exists() and self.step.is_finite():
            self._save_model("last")
        kept = f"the weights saved last are in {last}" if last.exists() else "no weights are saved"
        words = f"{reason} at step {self.at.step}, so the run stops; {kept}"
        raise RunError(f"{words}: try a lower learning rate or --clip, in another run")

    def _write(self, kind: str, figures: dict[str, Any]) -> None:
        """A row of metrics.jsonl, and the same for TensorBoard where that is asked for."""
        if not self.fabric.is_global_zero:
            return
        epoch = self.at.step / self.order.per_epoch
        self.folder.add_metrics({"kind": kind, "step": self.at.step, "epoch": epoch, **figures})
        for name, value in figures.items() if self._events is not None else ():
            if isinstance(value, float):
                self._events.add_scalar(f"{kind}/{name}", value, self.at.step)


def samples_due(recipe: Recipe, step: int, total: int) -> bool:
    """Whether a grid of samples belongs to a step; the last one has one."""
    if recipe.sample_every == 0 or recipe.kind not in ("flow", "deep"):
        return False
    every = recipe.sample_every or (total // 10 if total >= 20 else total)
    return step > 0 and (step == total or step % every == 0)


def lacks_samples(folder: RunFolder, recipe: Recipe, step: int, total: int) -> bool:
    """Whether a run was killed between the checkpoint of this step and its samples."""
    rows = ((row["kind"], row["step"]) for row in folder.metrics())
    return samples_due(recipe, step, total) and ("samples", step) not in rows
