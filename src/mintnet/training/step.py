"""One training step, the only one: run eagerly, or captured as one CUDA graph.

    augmentation, loss, backward, mean over processes, clipping, optimizer, EMA weights

A step whose loss or gradient is not finite changes nothing: weights, statistics of batch
normalization, moments and EMA weights stay as they are. That is decided on the device, so that the
step never waits for the host.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from mintnet.graphs import capture
from mintnet.training.data import augmented, stream
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

    ``batch_size`` is that over all processes; ``captured`` matters on a GPU alone.

    Examples:
        >>> from mintnet.models import Flow
        >>> from mintnet.training.task import DensityTask
        >>> step = Step(DensityTask(Flow.preset("digits")), Recipe.of("digits"), batch_size=4)
        >>> images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
        >>> step(images, None, torch.arange(4), epoch=0, learning_rate=0.01).finite
        True
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
        self.optimizer = make_optimizer(model, recipe)
        self.inputs: list[Tensor] = []  # each call fills them, at the same place in memory
        self.epoch = torch.zeros((), dtype=torch.long, device=self.device)
        self.rate, self.stop = torch.zeros(2, device=self.device).unbind()
        """1 − decay of the EMA weights, and 1 if this process is asked to stop."""
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
        given = [tensor for tensor in (images, index, labels) if tensor is not None]
        self.inputs = self.inputs or [torch.empty_like(t, device=self.device) for t in given]
        for place, tensor in zip(self.inputs, given, strict=True):
            place.copy_(tensor, non_blocking=True)
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
        recipe, (images, index, *labels) = self.recipe, self.inputs
        self.optimizer.zero_grad(set_to_none=True)
        before = [statistic.clone() for statistic in self.statistics]
        with self.fabric.autocast() if self.fabric else nullcontext():
            images = augmented(images, recipe.augmentation, recipe.seed, self.epoch, index)
            seed, known = stream(recipe.seed, "noise"), labels[0] if labels else None
            measured = self.task.measure(Batch(images, known, index, seed, draw=self.epoch))
        (measured["loss"].sum() / self.batch_size).backward()
        names = ("loss", *self.task.figures)
        means = torch.stack([measured[name].detach().sum() for name in names]) / self.batch_size
        self._sum_over_processes(means)
        norm = nn.utils.clip_grad_norm_(self.parameters, recipe.clip or float("inf"))
        bad = ~(norm.isfinite() & means[0].isfinite())
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        self.optimizer.step()
        with torch.no_grad():
            for statistic, value in zip(self.statistics, before, strict=True):
                statistic.copy_(torch.where(bad, value, statistic))
            self._average(self.rate * ~bad)
            told = (norm, bad, self.is_finite(), self.stop > 0)
            return torch.stack([*means, *(one.to(means.dtype) for one in told)])

    def _sum_over_processes(self, means: Tensor) -> None:
        """Gradients and means summed, statistics averaged over all processes: one collective."""
        fabric = self.fabric
        if fabric is None or fabric.world_size == 1:
            return
        for statistic in self.statistics:
            statistic.div_(fabric.world_size)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        shared = [*gradients, *self.statistics, means, self.stop]
        joined = torch.cat([tensor.flatten().to(means.dtype) for tensor in shared])
        joined = fabric.all_reduce(joined, reduce_op="sum")  # type: ignore[assignment]
        for tensor, total in zip(shared, joined.split([t.numel() for t in shared]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def _average(self, rate: Tensor) -> None:
        """EMA weights: a ← a + rate (w − a); `AveragedModel` of torch cannot be captured."""
        if self._averages:
            own = [*self.task.model.parameters(), *self.statistics]
            moves = torch._foreach_sub(own, self._averages)
            torch._foreach_mul_(moves, rate)
            torch._foreach_add_(self._averages, moves)

    @torch.no_grad()
    def is_finite(self) -> Tensor:
        """Whether all weights, and the statistics kept with them, are finite, ()."""
        largest = torch._foreach_norm([*self.parameters, *self.statistics], ord=float("inf"))
        return torch.stack(largest).isfinite().all()

    def state(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        moments = [v for state in self.optimizer.state.values() for v in state.values()]
        model = self.task.model
        kept = (*model.parameters(), *model.buffers(), *self._averages, *moments)
        return [tensor.detach() for tensor in kept if isinstance(tensor, Tensor)]

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
        for weight, moments in self.optimizer.state.items():
            if any(moment.dim() and moment.shape != weight.shape for moment in moments.values()):
                raise ValueError("moments of the optimizer have other shapes than the weights")


def float_buffers(model: nn.Module) -> list[Tensor]:
    """The running statistics that a model keeps besides its parameters."""
    saved = model.state_dict(keep_vars=True)
    return [b for n, b in model.named_buffers() if n in saved and b.is_floating_point()]
