"""A running average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """Exponential moving average of a model's weights: a ← d a + (1 − d) w.

    Running statistics of batch normalization are averaged like weights: those of the newest
    weights would not suit the averaged ones.

    The decay starts small, d = min(decay, (1 + n) / (10 + n)) after n updates, so that the
    average soon forgets the first weights. A decay of 0 keeps no average at all.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> average = MovingAverage(model, decay=0.5)
        >>> _ = nn.init.ones_(model.weight)
        >>> average.update(model, 100)
        >>> with average.applied(model):
        ...     model.weight.item()
        0.5
        >>> model.weight.item()
        1.0
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {}
        if decay:
            self.weights = {n: p.detach().clone() for n, p in _averaged(model).items()}

    def decay_after(self, updates: int) -> float:
        """d after so many updates."""
        return min(self.decay, (1 + updates) / (10 + updates))

    def update(self, model: nn.Module, updates: int) -> None:
        """Take in the model's weights; ``updates`` counts those before."""
        self.update_by(model, 1 - self.decay_after(updates))

    @torch.no_grad()
    def update_by(self, model: nn.Module, rate: float | Tensor) -> None:
        """As `update`, with 1 − d given."""
        if not self.decay:
            return
        own = _averaged(model)
        averages = list(self.weights.values())
        moves = torch._foreach_sub([own[name] for name in self.weights], averages)
        torch._foreach_mul_(moves, rate)
        torch._foreach_add_(averages, moves)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within this block the model has the averaged weights."""
        own = {n: p.detach().clone() for n, p in _averaged(model).items()} if self.decay else {}
        _copy(self.weights, model)
        try:
            yield
        finally:
            _copy(own, model)

    def copy_to(self, model: nn.Module) -> None:
        """Give the model the averaged weights for good."""
        _copy(self.weights, model)

    def to(self, device: torch.device) -> None:
        """Move the average to a device."""
        self.weights = {name: tensor.to(device) for name, tensor in self.weights.items()}


@torch.no_grad()
def _copy(weights: dict[str, Tensor], model: nn.Module) -> None:
    own = _averaged(model)
    for name, tensor in weights.items():
        own[name].copy_(tensor)


def float_buffers(model: nn.Module) -> dict[str, Tensor]:
    """What a model keeps in floating point besides its parameters, by name.

    Examples:
        >>> list(float_buffers(nn.BatchNorm2d(3)))
        ['running_mean', 'running_var']
    """
    return {name: b for name, b in model.named_buffers() if b.is_floating_point()}


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **float_buffers(model)}
