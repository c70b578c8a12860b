"""A whole step of training as one CUDA graph: thousands of small launches become one."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mintnet.solvers.replay import usable_generator
from mintnet.training.ema import float_buffers
from mintnet.training.signs import kept_signs
from mintnet.training.usual import tempered

if TYPE_CHECKING:
    from mintnet.training.module import TrainingModule

_log = logging.getLogger(__name__)


class RecordedStep:
    """Look-up, augmentation, loss, gradients, clipping, the optimizer and the moving average.

    A step whose loss is out of the ordinary, or whose gradient is not finite, leaves weights,
    statistics of batch normalization, moments and average as they were, as the plain step does,
    and the caller sees it in what is returned.

    Args:
        module: whose step it is; its images are on the device.
        optimizer: with ``capturable`` and ``fused`` on, and its learning rate in a tensor.
        record: False runs the same step without a graph, for tests where there is no GPU.
    """

    def __init__(
        self, module: TrainingModule, optimizer: torch.optim.Optimizer, record: bool = True
    ) -> None:
        self.module, self.optimizer = module, optimizer
        device = module.images.device
        self.places = torch.zeros(module.batch, dtype=torch.long, device=device)
        self.epoch = torch.zeros((), dtype=torch.long, device=device)
        self.rate = torch.zeros((), device=device)
        """Of the moving average: 1 − decay."""
        self.bound = torch.full((), math.inf, dtype=torch.float64, device=device)
        """Of the loss, see `TrainingModule.bound`."""
        self.ceiling = torch.full((), math.inf, device=device)
        """Of the loss of an image, see `TrainingModule.ceiling`."""
        self.graph: torch.cuda.CUDAGraph | None = None
        if record:
            self._record()

    def __call__(self, places: Tensor, learning_rate: float) -> Tensor:
        """One step; sums over the batch, the norm of the gradient, 1 if it counts, 1 if finite.

        The last is said of the weights.
        """
        module = self.module
        self.places.copy_(places, non_blocking=True)
        self.epoch.fill_(module.epoch)
        self.rate.fill_(1 - module.average.decay_after(module.step))
        self.bound.fill_(module.bound)
        self.ceiling.fill_(module.ceiling)
        for group in self.optimizer.param_groups:
            group["lr"].fill_(learning_rate)
        if self.graph is None:
            return self._run()
        self.graph.replay()
        return self.results

    def _run(self) -> Tensor:
        module, recipe = self.module, self.module.plan.recipe
        parameters = [p for p in module.model.parameters() if p.requires_grad]
        for parameter in parameters:
            parameter.grad = None
        statistics = list(float_buffers(module.model).values())
        before = [statistic.clone() for statistic in statistics]
        sums = module.no_sums()
        for piece in self.places.tensor_split(min(recipe.accumulate, len(self.places))):
            measured = module.task.measure(module.training_batch(piece, self.epoch))
            loss = tempered(measured["loss"], self.ceiling, module.task.reach)
            (loss.sum() / len(self.places)).backward()
            module.add(sums, measured, self.ceiling)
        norm = torch.nn.utils.clip_grad_norm_(parameters, recipe.clip or float("inf"))
        loss = sums["loss"] / len(self.places)
        bad = ~(norm.isfinite() & loss.isfinite() & (loss <= self.bound))
        # Fused optimizers skip a step for which this is 1; it exists for scaled gradients.
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        with kept_signs(module.model):
            self.optimizer.step()
        for statistic, value in zip(statistics, before, strict=True):
            statistic.copy_(torch.where(bad, value, statistic))
        module.average.update_by(module.model, self.rate * ~bad)
        said = (norm, ~bad, module.finite())
        return torch.stack([*sums.values(), *(one.double() for one in said)])

    def _record(self) -> None:
        """Warm up, record, and put everything back as it was before.

        Shapes stay the same, so that convolutions are chosen by measuring them. Where a graph
        cannot be had, steps run one kernel after the other.
        """
        tensors = self._state()
        before = [tensor.clone() for tensor in tensors]
        known = {tensor.data_ptr() for tensor in tensors}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with chosen_by_measuring():
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._run()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = self._graph()
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
            for tensor in self._state():  # moments that the warm-up has made
                if tensor.data_ptr() not in known:
                    tensor.zero_()

    def _graph(self) -> torch.cuda.CUDAGraph | None:
        """The step as a graph; None, and a line, where it cannot be recorded."""
        graph = torch.cuda.CUDAGraph()
        try:
            with usable_generator(self.places.device), torch.cuda.graph(graph):
                self.results = self._run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).split("\n")[0]
            _log.warning("steps are not recorded, which makes them slower (%s)", reason)
            return None
        return graph

    def _state(self) -> list[Tensor]:
        """Every tensor that a step changes, outside of autograd.

        A clone with a gradient would keep nodes of the parameters alive, which belong to the
        stream of the clone; no step could then be recorded on another.
        """
        module: Any = self.module
        moments = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        model = module.model
        kept = (*model.parameters(), *model.buffers(), *module.average.weights.values(), *moments)
        return [tensor.detach() for tensor in kept]


@contextmanager
def chosen_by_measuring() -> Iterator[None]:
    """Inside, cuDNN measures its convolutions once for each shape, and takes the fastest.

    Examples:
        >>> with chosen_by_measuring():
        ...     torch.backends.cudnn.benchmark
        True
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
