"""What is learned, a model and a loss for each image; and one training step, the only one.

It is run eagerly, or captured as one CUDA graph:

    augmentation, loss, backward, mean over processes, clipping, optimizer, EMA weights

A step whose loss or gradient is not finite changes nothing: weights, statistics of batch
normalization, moments and EMA weights stay as they are. That is decided on the device, so that the
step never waits for the host.
"""

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.data import ImageData
from mintnet.graphs import capture
from mintnet.models.classifier import ImageClassifier
from mintnet.models.fast import fast_transform
from mintnet.models.flow import Flow
from mintnet.models.noise import uniform_noise
from mintnet.training.data import augmented, stream
from mintnet.training.folder import RunError
from mintnet.training.optimizers import make_optimizer
from mintnet.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FastPath = dict[str, Any]  # ``dtype`` of convolutions, and whether layers are ``compiled``


@dataclass(frozen=True)
class Batch:
    """Images (batch, C, H, W) uint8, labels (batch,) int64 or None, and what fixes the noise."""

    images: Tensor
    labels: Tensor | None
    index: Tensor  # (batch,): places in the data set
    seed: int
    draw: int | Tensor


class DensityTask:
    """Maximum likelihood: the loss is − log p of the dequantized image, in nats.

    Of a class-conditional flow, a label weight w adds − w · log p(label | x) by Bayes' rule in
    training, for every fourth image, which counts four times. Its gradient is that of
    (1 − p(label | x)) · log (p(x | other) / p(x | label)) with another label drawn from
    p(other | x), so that one label more is differentiated and not all.
    """

    figures: tuple[str, ...] = ("bpd",)

    def __init__(self, flow: Flow, label_weight: float = 0.0) -> None:
        self.model: Any = flow
        self.label_weight = label_weight
        self.fast: FastPath | None = None

    def nats(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """− log p of dequantized images, (batch,), of those with classes given the labels."""
        flow, context = self.model, None
        if flow.classes and labels is not None:
            context = F.one_hot(labels, flow.classes).to(flow.dtype)
        net = flow.given(context)
        fast = self.fast if flow.training else None
        transform = partial(fast_transform, net, **fast) if fast else net.transform
        return -flow.log_density(x, transform)  # type: ignore[no-any-return]

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        flow, dtype = self.model, self.model.dtype  # `log_prob` would check images in each call
        noise = uniform_noise(batch.seed, batch.draw, batch.index, flow.shape, dtype)
        x, labels = (batch.images.to(dtype) + noise) / flow.levels, batch.labels
        per_bit = flow.dimensions * math.log(2)
        if not (flow.training and self.label_weight) or labels is None:
            loss = self.nats(x, labels)
            return {"loss": loss, "bpd": loss / per_bit}
        some = torch.arange(0, len(x), 4, device=x.device)
        seen, label = x[some], labels[some, None]
        with torch.no_grad():
            every = torch.arange(flow.classes, device=x.device).repeat(len(some))
            copies = seen.repeat_interleave(flow.classes, 0).split(len(x)), every.split(len(x))
            each = -torch.cat([self.nats(*part) for part in zip(*copies, strict=True)])
            each = each.view(-1, flow.classes)  # log p(x | label) of all labels
            own = stream(batch.seed, "labels"), batch.draw, batch.index[some]
            share = uniform_noise(*own, each.shape[1:], dtype)
            drawn = (each - (-share.log()).log()).scatter(1, label, -math.inf).argmax(1)
        nats = self.nats(torch.cat([x, seen]), torch.cat([labels, drawn]))
        loss, other = nats.split([len(x), len(some)])
        posterior = each.log_softmax(1).gather(1, label)[:, 0]
        gap = (1 - posterior.exp()) * (loss[some] - other)
        bayes = (gap - gap.detach() - posterior) * (len(x) / len(some))
        total = loss.index_add(0, some, self.label_weight * bayes)
        return {"loss": total, "bpd": loss / per_bit}


class ClassificationTask:
    """Cross entropy: the loss is − log p of the true class, in nats, with smoothed labels."""

    figures: tuple[str, ...] = ("error", "nats")  # 1 for a mistake, and the loss without smoothing

    def __init__(self, classifier: ImageClassifier, label_smoothing: float = 0.0) -> None:
        self.model: Any = classifier
        self.label_smoothing = label_smoothing
        self.fast: FastPath | None = None

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        model, training = self.model, self.model.training
        if batch.labels is None or (training and len(batch.images) < 2):
            words = "batch normalization needs at least two images in each device's batch"
            raise RunError(f"{words}: take a larger --batch-size or fewer devices")
        fast = self.fast if self.fast and training else {}
        logits = model.logits(model.prepared(batch.images), **fast).to(model.dtype)
        log_probs = logits.log_softmax(1)
        loss = nats = F.nll_loss(log_probs, batch.labels, reduction="none")
        if training and self.label_smoothing:
            loss = (1 - self.label_smoothing) * nats - self.label_smoothing * log_probs.mean(1)
        wrong = log_probs.argmax(1) != batch.labels
        return {"loss": loss, "error": wrong.to(loss.dtype), "nats": nats}


Task = DensityTask | ClassificationTask


def check_labels(data: ImageData, classes: int, where: str) -> Tensor:
    """The labels of images that can teach or test a classifier, or `RunError`."""
    if data.labels is None:
        raise RunError(f"{data.name} has no labels, and a classifier needs them for {where}")
    low, high = int(data.labels.min()), int(data.labels.max())
    if low < 0 or high >= classes:
        raise RunError(f"{data.name} has labels from {low} to {high}; expected 0 to {classes - 1}")
    return data.labels


class Outcome(NamedTuple):
    """What a step found: means over the batch, norm of the gradient, and whether it counted."""

    means: dict[str, float]
    norm: float
    left_out: bool
    finite: bool  # whether all weights are
    stop: bool  # whether a process has asked all to stop


class Step:
    """One step of training for a task; what is evaluated and saved is ``step.averaged``."""

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        batch_size: int,  # over all processes
        fabric: "Fabric | None" = None,
        captured: bool = False,  # matters on a GPU alone
    ) -> None:
        self.task, self.recipe, self.batch_size, self.fabric = task, recipe, batch_size, fabric
        model = task.model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.statistics = float_buffers(model)
        self.averaged: Task = copy.deepcopy(task) if recipe.ema else task
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
            if self._averages:  # a ← a + rate (w − a); torch's `AveragedModel` cannot be captured
                own = [*self.task.model.parameters(), *self.statistics]
                moves = torch._foreach_sub(own, self._averages)
                torch._foreach_mul_(moves, self.rate * ~bad)
                torch._foreach_add_(self._averages, moves)
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
        optimizer = self.optimizer.state_dict()
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])
        averaged = self.averaged.model.state_dict() if self.recipe.ema else {}
        return {"model": self.task.model.state_dict(), "averaged": averaged, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.task.model.load_state_dict(state["model"])
        if self.recipe.ema:
            self.averaged.model.load_state_dict(state["averaged"])
        saved, groups = state["optimizer"], self.optimizer.state_dict()["param_groups"]
        for before, here in zip(saved["param_groups"], groups, strict=True):
            for name in here.keys() - {"lr", "fused", "capturable", "foreach"}:  # the device's own
                if before.get(name) != here[name]:
                    raise ValueError(f"its {name} is {before.get(name)}, not {here[name]}")
        self.optimizer.load_state_dict({**saved, "param_groups": groups})
        for weight, moments in self.optimizer.state.items():
            if any(moment.dim() and moment.shape != weight.shape for moment in moments.values()):
                raise ValueError("moments of the optimizer have other shapes than the weights")


def float_buffers(model: nn.Module) -> list[Tensor]:
    """The running statistics that a model keeps besides its parameters."""
    saved = model.state_dict(keep_vars=True)
    return [b for n, b in model.named_buffers() if n in saved and b.is_floating_point()]
