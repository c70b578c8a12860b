"""One training step, the only one: run eagerly, or captured as one CUDA graph.

    augmentation, loss, backward, mean over processes, clipping, optimizer, EMA weights

A step whose loss or gradient is not finite changes nothing: weights, statistics of batch
normalization, moments and EMA weights stay as they are. That is decided on the device, so that the
step never waits for the host.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from mintnet.graphs import capture
from mintnet.training.augment import augmented
from mintnet.training.data import stream
from mintnet.training.optimizers import load_state, make_optimizer
from mintnet.training.recipe import Recipe
from mintnet.training.task import Batch, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Outcome(NamedTuple):
    """What a step found: means over the batch, norm of the gradient, and whether it counted."""

    means: dict[str, float]
    norm: float
    left_out: bool
    finite: bool
    """Whether all weights are finite after the step."""
    stop: bool
    """Whether a process has asked all of them to stop."""


class Step:
    """One step of training for a task; what is evaluated and saved is ``step.averaged``.

    Args:
        task: the model, on its device, and its loss.
        recipe: how it is trained.
        batch_size: images of one step over all processes.
        fabric: for several processes and mixed precision; None for one process.
        captured: capture the step as a CUDA graph; elsewhere than on a GPU it runs as it is.

    Examples:
        >>> from mintnet.models import Flow
        >>> from mintnet.training.task import DensityTask
        >>> step = Step(DensityTask(Flow.preset("digits")), Recipe.of("digits"), batch_size=4)
        >>> images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
        >>> outcome = step(images, None, torch.arange(4), epoch=0, learning_rate=0.01)
        >>> outcome.finite, outcome.left_out
        (True, False)
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        batch_size: int,
        fabric: Fabric | None = None,
        captured: bool = False,
    ) -> None:
        self.task, self.recipe, self.batch_size, self.fabric = task, recipe, batch_size, fabric
        model = task.model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.statistics = float_buffers(model)
        self.averaged: Task = copy.deepcopy(task) if recipe.ema else task
        """The task with the EMA weights; the task itself without an average."""
        self._averages: list[Tensor] = []
        if recipe.ema:
            kept = self.averaged.model.requires_grad_(False)
            self._averages = [*kept.parameters(), *float_buffers(kept)]
        fast = task.fast
        self.optimizer = make_optimizer(model, recipe, None if fast is None else fast.dtype)
        self.batch: Batch | None = None  # each call fills it, at the same place in memory
        self.epoch = torch.zeros((), dtype=torch.long, device=self.device)
        self.rate = torch.zeros((), device=self.device)
        """1 − decay of the EMA weights."""
        self.stop = torch.zeros((), device=self.device)
        self._captured, self._run = captured, self.run

    def __call__(
        self,
        images: Tensor,
        labels: Tensor | None,
        index: Tensor,
        epoch: int,
        learning_rate: float,
        number: int = 0,
        stop: bool = False,
    ) -> Outcome:
        """Step ``number`` of the run, on this process's part of the batch.

        Shapes: images (n, C, H, W) uint8, labels (n,) or None, index (n,): places in the data set.
        """
        self._fill(images, labels, index)
        self.epoch.fill_(epoch)
        self.stop.fill_(stop)
        self.rate.fill_(1 - min(self.recipe.ema, (1 + number) / (10 + number)))
        for group in self.optimizer.param_groups:
            group["lr"].fill_(learning_rate)
        if self._captured:
            self._captured, self._run = False, capture(self.run, self.device, self.state)
        *means, norm, bad, finite, stop_asked = self._run().tolist()
        named = dict(zip(("loss", *self.task.figures), means, strict=True))
        return Outcome(named, norm, bool(bad), bool(finite), bool(stop_asked))

    def run(self) -> Tensor:
        """The step itself: means over the batch, norm, 1 if left out, 1 if weights are finite."""
        recipe, batch = self.recipe, self.batch
        assert batch is not None
        for parameter in self.parameters:
            parameter.grad = None
        before = [statistic.clone() for statistic in self.statistics]
        with self._autocast():
            images = augmented(
                batch.images, recipe.augmentation, recipe.seed, self.epoch, batch.index
            )
            measured = self.task.measure(replace(batch, images=images, draw=self.epoch))
        (measured["loss"].sum() / self.batch_size).backward()
        names = ("loss", *self.task.figures)
        means = torch.stack([measured[name].detach().sum() for name in names]) / self.batch_size
        means = self._over_processes(means)
        norm = nn.utils.clip_grad_norm_(self.parameters, recipe.clip or float("inf"))
        bad = ~(norm.isfinite() & means[0].isfinite())
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        self.optimizer.step()
        with torch.no_grad():
            for statistic, value in zip(self.statistics, before, strict=True):
                statistic.copy_(torch.where(bad, value, statistic))
            self._average(self.rate * ~bad)
            told = (norm, bad, self._finite(), self.stop > 0)
            return torch.stack([*means, *(one.to(means.dtype) for one in told)])

    def _fill(self, images: Tensor, labels: Tensor | None, index: Tensor) -> None:
        """Put a batch where the captured step reads it."""
        if self.batch is None:
            seed = stream(self.recipe.seed, "noise")
            places = [
                t if t is None else t.to(self.device).clone() for t in (images, labels, index)
            ]
            self.batch = Batch(*places, seed, self.epoch)  # type: ignore[arg-type, call-arg]
        batch = self.batch
        for place, tensor in ((batch.images, images), (batch.labels, labels), (batch.index, index)):
            if place is not None and tensor is not None:
                place.copy_(tensor, non_blocking=True)

    def _over_processes(self, means: Tensor) -> Tensor:
        """Gradients and means summed, statistics averaged over all processes: one collective."""
        fabric = self.fabric
        if fabric is None or fabric.world_size == 1:
            return means
        for statistic in self.statistics:
            statistic.div_(fabric.world_size)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        shared = [*gradients, *self.statistics, means, self.stop]
        joined = torch.cat([tensor.flatten().to(means.dtype) for tensor in shared])
        joined = fabric.all_reduce(joined, reduce_op="sum")  # type: ignore[assignment]
        for tensor, total in zip(shared, joined.split([t.numel() for t in shared]), strict=True):
            tensor.copy_(total.view_as(tensor))
        return means

    def _average(self, rate: Tensor) -> None:
        """EMA weights: a ← a + rate (w − a).

        `torch.optim.swa_utils.AveragedModel` reads a counter on the host and has a fixed decay,
        which neither a captured step nor the first steps can take.
        """
        if self._averages:
            own = [*self.task.model.parameters(), *self.statistics]
            moves = torch._foreach_sub(own, self._averages)
            torch._foreach_mul_(moves, rate)
            torch._foreach_add_(self._averages, moves)

    def _finite(self) -> Tensor:
        largest = torch._foreach_norm([*self.parameters, *self.statistics], ord=float("inf"))
        return torch.stack(largest).isfinite().all()

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.fabric is None else self.fabric.autocast()

    def state(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        moments = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        model = self.task.model
        kept = (*model.parameters(), *model.buffers(), *self._averages, *moments)
        return [tensor.detach() for tensor in kept]

    def is_finite(self) -> bool:
        """Whether all weights, and the statistics kept with them, are finite."""
        with torch.no_grad():
            return bool(self._finite())

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        optimizer = self.optimizer.state_dict()
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])
        averaged = self.averaged.model.state_dict() if self.recipe.ema else {}
        model = self.task.model.state_dict()
        return {"model": model, "averaged": averaged, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of `state_dict`."""
        self.task.model.load_state_dict(state["model"])
        if self.recipe.ema:
            self.averaged.model.load_state_dict(state["averaged"])
        load_state(self.optimizer, state["optimizer"])


def float_buffers(model: nn.Module) -> list[Tensor]:
    """The running statistics that a model keeps besides its parameters."""
    saved = model.state_dict(keep_vars=True)
    return [b for n, b in model.named_buffers() if n in saved and b.is_floating_point()]
