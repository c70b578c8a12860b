"""The loop as a Lightning module: what a step does to the weights, and validation.

Everything random about a step follows from the seed and the number of the step, so there is one
counter, ``step``, and no other position to restore.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from mintnet.data import ImageData
from mintnet.precision import true_float32
from mintnet.training.augment import augmented
from mintnet.training.checkpoint import Checkpoint
from mintnet.training.devices import SMALL
from mintnet.training.ema import MovingAverage, float_buffers
from mintnet.training.files import RunError
from mintnet.training.muon import Muon, kernels_of
from mintnet.training.order import Batches, held_out, part_of, permutation, stream
from mintnet.training.plan import Plan
from mintnet.training.recorded import RecordedStep
from mintnet.training.schedule import learning_rate
from mintnet.training.signs import kept_signs
from mintnet.training.task import Batch, Task
from mintnet.training.usual import UsualLoss, tempered

SLOW_VALIDATION = ((1024, 256), (math.inf, 64))
"""Where the device is slow: up to so many dimensions, so many held-out images are validated on."""


_NOTHING: Mapping[str, Tensor] = {}

PATIENCE = 20
"""Steps in a row that may be left out since something is not finite."""
FAR_OUT = "far_out"
"""The share of images above the ceiling, beside the figures of a step."""
DOUBT = 3
"""Steps in a row that may be left out since their losses are high: by then it is the weights."""


FALLS = 5
"""How often a run may go back to its averaged weights."""


class NotFiniteError(RunError):
    """The loss and its gradient are not finite, step after step, or the weights are not."""


def decay_groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Parameters for decoupled weight decay: matrices and kernels decay, the rest does not.

    Biases, batch normalization and t have no scale that decay would have to keep small.

    Examples:
        >>> [len(group["params"]) for group in decay_groups(torch.nn.Linear(2, 3))]
        [1, 1]
    """
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    matrix = {n: p.dim() >= 2 and not n.endswith("raw_t") for n, p in named}
    return [
        {"params": [p for n, p in named if matrix[n]]},
        {"params": [p for n, p in named if not matrix[n]], "weight_decay": 0.0},
    ]


def _moved(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A saved state with what belongs to the device taken from the optimizer as it is here."""
    own = ("lr", "fused", "capturable", "foreach")
    groups = [
        {**before, **{name: here[name] for name in own}}
        for before, here in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {**saved, "param_groups": groups}


class TrainingModule(LightningModule):
    """Trains a task on images after a plan.

    Args:
        task: the model and its loss.
        data: the training images; those to hold out are chosen here.
        plan: what is to be done with them.
        start: the state to go on from.
    """

    def __init__(
        self, task: Task, data: ImageData, plan: Plan, start: Checkpoint | None = None
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = task.model  # Lightning moves it and reduces its gradients
        self.task, self.plan = task, plan
        self.images, self.labels = data.images, data.labels
        self.places, self.held = held_out(len(data), plan.recipe.validation)
        self.batch = min(plan.recipe.batch_size, len(self.places))
        self.steps_per_epoch = len(self.places) // self.batch
        self.total = min(plan.recipe.epochs * self.steps_per_epoch, plan.recipe.max_steps or 2**62)
        self.epochs = math.ceil(self.total / self.steps_per_epoch)
        self.step = start.step if start else 0
        """Steps done."""
        self.average = MovingAverage(task.model, plan.recipe.ema)
        self.validated = self.held
        """The held-out images that are validated on."""
        self.gave_in = False
        """Whether the last step made a high loss the usual one."""
        self.means: dict[str, float] = {}
        """The figures of the last step."""
        self.left_out = start.left_out if start else 0
        """How many of the last steps in a row were left out."""
        self.usual = UsualLoss(*start.usual) if start else UsualLoss()
        self.patience = min(PATIENCE, self.total // 10)
        self.falls, self.fell_at = (start.falls, start.fell_at) if start else (0, 0)
        """How often the run went back to the averaged weights, and the last step that did."""
        self._optimizer_state = start.optimizer if start else None
        self._recorded: RecordedStep | None = None
        if start is not None:
            self.model.load_state_dict(start.model)
            self.average.weights = start.average

    @property
    def epoch(self) -> int:
        """The epoch of the next step, from 0."""
        return self.step // self.steps_per_epoch

    @property
    def has_fallen(self) -> bool:
        """Whether the last step ended with a fall."""
        return self.falls > 0 and self.fell_at == self.step - 1

    @property
    def bound(self) -> float:
        """The loss above which the next step is left out."""
        # Images count up to the ceiling: half of them there are out of the ordinary in any case.
        high = self.usual.ceiling(self.task.reach / 2)
        return min(self.usual.bound, high) if math.isfinite(self.task.reach) else math.inf

    @property
    def ceiling(self) -> float:
        """The loss above which an image of the next step is tempered."""
        return self.usual.ceiling(self.task.reach)

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return learning_rate(self.plan.recipe, self.step, self.total, self.falls, self.fell_at)

    @property
    def is_slow(self) -> bool:
        """Whether images are so large, and the device so slow, that some work is cut short."""
        return self.device.type == "cpu" and self.images[0].numel() > SMALL

    def configure_optimizers(self) -> torch.optim.Optimizer:
        recipe = self.plan.recipe
        recorded = self.task.fast is not None
        rate: Any = recipe.learning_rate
        options: dict[str, Any] = {
            "lr": torch.tensor(rate, device=self.device) if recorded else rate,
            "eps": recipe.eps,
            "weight_decay": recipe.weight_decay,
            "amsgrad": recipe.amsgrad,
            "fused": recorded or self.device.type == "cpu" or None,  # one pass instead of ten
            "capturable": recorded,
        }
        optimizer: torch.optim.Optimizer
        if recipe.muon:
            fast = self.task.fast
            dtype = None if fast is None else fast.dtype
            share = recipe.unmasked_step
            optimizer = Muon(*kernels_of(self.model), dtype=dtype, unmasked=share, **options)
        elif recipe.decoupled:
            optimizer = torch.optim.AdamW(decay_groups(self.model), **options)
        else:
            optimizer = torch.optim.Adam(self.model.parameters(), **options)
        if self._optimizer_state:
            optimizer.load_state_dict(_moved(self._optimizer_state, optimizer))
        return optimizer

    def on_fit_start(self) -> None:
        """Move the images to the device where they take no more than a third of what is free."""
        if self.trainer.world_size > self.batch:
            raise RunError(
                f"a batch of {self.batch} images cannot be split over {self.trainer.world_size} "
                f"processes; use fewer devices or a larger batch size"
            )
        self.average.to(self.device)
        if self.is_slow:
            size = self.images[0].numel()
            self.validated = self.held[: next(n for most, n in SLOW_VALIDATION if size <= most)]
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            if self.images.numel() < free // 3:
                self.images = self.images.to(self.device)
                self.labels = None if self.labels is None else self.labels.to(self.device)

    def train_dataloader(self) -> Batches:
        """What is left of this epoch: the places of the images of each step."""
        first = self.epoch * self.steps_per_epoch
        last = min(first + self.steps_per_epoch, self.total)
        order = self.places[permutation(self.plan.seed, self.epoch, len(self.places))]
        batches = order[: self.steps_per_epoch * self.batch].reshape(-1, self.batch)
        return Batches(list(batches[self.step - first : last - first]))

    def transfer_batch_to_device(self, batch: Tensor, device: torch.device, _: int) -> Tensor:
        return batch  # places are looked up where the images are

    def training_step(self, places: Tensor, _: int) -> None:
        """One step of the optimizer. The loss is the mean over the whole batch, whoever has it."""
        if self._is_recordable():
            self._recorded_step(places)
        else:
            self._plain_step(places)
        self.step += 1

    def _is_recordable(self) -> bool:
        on_device = self.images.is_cuda and self.device.type == "cuda"
        return self.task.fast is not None and on_device and self.trainer.world_size == 1

    def _recorded_step(self, places: Tensor) -> None:
        """The whole step as one CUDA graph."""
        if self._recorded is None:
            raw: Any = self.optimizers(use_pl_optimizer=False)
            self._recorded = RecordedStep(self, raw)
        rate = self.learning_rate
        *sums, norm, counts, finite = self._recorded(places, rate).tolist()
        self.means = {n: total / len(places) for n, total in zip(self.summed, sums, strict=True)}
        self._counts(norm, bool(counts))
        if not finite:
            raise NotFiniteError("the weights are no longer finite")

    def _is_usual(self, norm: float) -> bool:
        """Whether the loss is finite and nothing special, and the gradient finite."""
        loss = self.means["loss"]
        return math.isfinite(loss) and math.isfinite(norm) and loss <= self.bound

    def _counts(self, norm: float, usual: bool, before: Mapping[str, Tensor] = _NOTHING) -> bool:
        """Keep count of a step that is ``usual``, or else left out; returns which.

        A single image can be far out, for one draw of noise. Only if step after step is so, it
        is the weights; then the run goes back to their average, or stops, or takes a loss that is
        high, but finite, for the usual one from now on. Statistics of batch normalization
        become what they were ``before``: until they are shared, those of each process are its
        own, and all processes have to come to the same conclusion.
        """
        loss, self.gave_in = self.means["loss"], False
        finite = math.isfinite(loss) and math.isfinite(norm)
        if usual:
            self.usual.add(loss)
            self.left_out = 0
            return True
        self.left_out += 1
        statistics = float_buffers(self.model)
        for name, value in before.items():
            statistics[name].copy_(value)
        if not self.is_finite():
            raise NotFiniteError(f"the loss is {loss:g}, its gradient {norm:g}")
        patience = min(self.patience, DOUBT) if finite else self.patience
        if self.left_out > patience and not self._fall_back():
            if not finite:
                raise NotFiniteError(f"the loss is {loss:g}, its gradient {norm:g}")
            self.usual.forget()
            self.left_out, self.gave_in = 0, True
        return False

    @torch.no_grad()
    def _fall_back(self) -> bool:
        """Go on from the averaged weights, without moments; False where that cannot be done.

        The average is behind the weights, so that it has seen little of what led them astray.
        """
        average = self.average.weights
        if (
            self.falls == FALLS
            or not average
            or not all(w.isfinite().all() for w in average.values())
        ):
            return False
        self.average.copy_to(self.model)
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()  # in place: a recorded step knows where they are
        self.falls, self.fell_at, self.left_out = self.falls + 1, self.step, 0
        self.usual.forget()  # it is of other weights
        return True

    def _plain_step(self, places: Tensor) -> None:
        recipe, world = self.plan.recipe, self.trainer.world_size
        optimizer: Any = self.optimizers()
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate
        optimizer.zero_grad()
        before = {name: b.clone() for name, b in float_buffers(self.model).items()}
        own = part_of(places, self.trainer.global_rank, world)
        pieces = [piece for piece in own.tensor_split(recipe.accumulate) if len(piece)]
        sums = self.no_sums()
        for number, piece in enumerate(pieces, 1):
            measured = self.task.measure(self.training_batch(piece, self.epoch))
            loss = tempered(measured["loss"], self.ceiling, self.task.reach)
            with self._without_reduction(number < len(pieces)):
                # gradients are averaged over processes, whose parts may differ in size
                self.manual_backward(loss.sum() * (world / len(places)))
            self.add(sums, measured, self.ceiling)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip or float("inf"))
        self.means = self._means(sums, len(places))
        if not self._counts(float(norm), self._is_usual(float(norm)), before):
            return
        with torch.no_grad(), kept_signs(self.model):
            optimizer.step()
        self._share_statistics()
        if not self.is_finite():  # each process sees the same, so that all stop
            raise NotFiniteError("the weights are no longer finite")
        self.average.update(self.model, self.step)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Figures of the held-out images in true float32, under noise that never changes."""
        sums = self.no_sums()
        own = part_of(self.validated, self.trainer.global_rank, self.trainer.world_size)
        with true_float32(), self.average.applied(self.model):
            self.model.eval()
            for piece in own.split(max(self.batch, 32) if self.is_slow else self.batch):
                seed = stream(0, "validation noise")
                self.add(sums, self.task.measure(Batch(*self._look_up(piece), seed, 0)))
            self.model.train()
        means = self._means(sums, len(self.validated))
        return {name: mean for name, mean in means.items() if name != FAR_OUT}

    def is_finite(self) -> bool:
        """Whether all weights, and statistics kept with them, are finite numbers."""
        return bool(self.finite())

    @torch.no_grad()
    def finite(self) -> Tensor:
        """As `is_finite`, without waiting for the device. Shape: ()."""
        tensors = [*self.model.parameters(), *float_buffers(self.model).values()]
        largest = torch._foreach_norm(tensors, ord=float("inf"))
        return torch.stack(largest).isfinite().all()

    def state(self) -> Checkpoint:
        """What must be kept to go on from here."""
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        saved = optimizer.state_dict()
        for group in saved["param_groups"]:
            group["lr"] = float(group["lr"])  # on a GPU it is a tensor
        return Checkpoint(
            step=self.step,
            model=self.model.state_dict(),
            optimizer=saved,
            average=self.average.weights,
            usual=self.usual.state(),
            falls=self.falls,
            fell_at=self.fell_at,
            left_out=self.left_out,
        )

    def training_batch(self, places: Tensor, epoch: int | Tensor) -> Batch:
        """The images at these places as a step of this epoch sees them."""
        images, labels, index = self._look_up(places)
        images = augmented(images, self.plan.recipe.augmentation, self.plan.seed, epoch, index)
        return Batch(images, labels, index, stream(self.plan.seed, "noise"), epoch)

    def _look_up(self, places: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        own = places.to(self.images.device)
        labels = None if self.labels is None else self.labels[own].to(self.device)
        return self.images[own].to(self.device), labels, places.to(self.device)

    @torch.no_grad()
    def _share_statistics(self) -> None:
        """Running statistics of batch normalization as means over all processes, the same in each.

        Each process normalizes with the statistics of its own part of the batch.
        """
        if self.trainer.world_size == 1 or not (buffers := float_buffers(self.model)):
            return
        joined = torch.cat([buffer.flatten() for buffer in buffers.values()])
        joined = self.trainer.strategy.reduce(joined, reduce_op="mean")
        for buffer, mean in zip(
            buffers.values(), joined.split([b.numel() for b in buffers.values()]), strict=True
        ):
            buffer.copy_(mean.reshape(buffer.shape))

    def _without_reduction(self, wanted: bool) -> contextlib.AbstractContextManager[None]:
        model: Any = self.trainer.strategy.model
        return model.no_sync() if wanted and hasattr(model, "no_sync") else contextlib.nullcontext()

    def no_sums(self) -> dict[str, Tensor]:
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        return dict.fromkeys(self.summed, zero)

    @property
    def summed(self) -> tuple[str, ...]:
        """What is summed over images: loss and figures, and how many were above the ceiling."""
        return ("loss", *self.task.figure_names, FAR_OUT)

    def add(
        self,
        sums: dict[str, Tensor],
        measured: dict[str, Tensor],
        ceiling: float | Tensor = math.inf,
    ) -> None:
        """Add figures of images; one above the ceiling counts as if it were there."""
        losses = measured["loss"].detach().double()
        far = losses > ceiling
        share = torch.where(far, ceiling / losses, 1.0)
        for name in (name for name in sums if name != FAR_OUT):
            sums[name] = sums[name] + (measured[name].detach().double() * share).sum()
        sums[FAR_OUT] = sums[FAR_OUT] + far.sum()

    def _means(self, sums: dict[str, Tensor], images: int) -> dict[str, float]:
        """Means over the images of all processes, the same in each."""
        values = torch.stack(list(sums.values()))
        if self.trainer.world_size > 1:
            values = self.trainer.strategy.reduce(values, reduce_op="sum")
        return dict(zip(sums, (values / images).tolist(), strict=True))
