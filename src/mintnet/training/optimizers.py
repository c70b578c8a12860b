"""The learning rate and the optimizer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from mintnet.training.recipe import Recipe

DECAY = 0.1
"""Of the learning rate at a milestone."""


def learning_rate(recipe: Recipe, step: int, total: int) -> float:
    """The learning rate of step 0, 1, …, total − 1, a pure function.

    Examples:
        >>> recipe = Recipe("digits", learning_rate=1.0, schedule="step", milestones=(0.5,))
        >>> [learning_rate(recipe, step, 4) for step in range(4)]
        [1.0, 1.0, 0.1, 0.1]
    """
    share = step / max(total, 1)
    if recipe.schedule == "step":
        factor = DECAY ** sum(share >= milestone for milestone in recipe.milestones)
    else:
        factor = 0.5 * (1 + math.cos(math.pi * share))
    if recipe.warmup:
        factor *= min(1.0, (step + 1) / recipe.warmup)
    return recipe.learning_rate * factor


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AMSGrad or Adam with decoupled decay of kernels, fused: it skips where ``found_inf`` is 1.

    The learning rate is a tensor, so that a captured step can read it.
    """
    kernels = [p for n, p in model.named_parameters() if is_kernel(n, p)]
    others = [p for n, p in model.named_parameters() if p.requires_grad and not is_kernel(n, p)]
    device = others[0].device
    groups: list[dict[str, Any]] = [{"params": kernels, "weight_decay": recipe.weight_decay}]
    return torch.optim.AdamW(
        [*groups, {"params": others}],
        lr=torch.tensor(recipe.learning_rate, device=device),
        eps=recipe.eps,
        weight_decay=0.0,
        amsgrad=not recipe.adam,
        fused=True,
        capturable=device.type == "cuda",
    )


def is_kernel(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter is a matrix or a kernel, which alone decay."""
    own = name.rpartition(".")[2]
    return parameter.requires_grad and parameter.dim() >= 2 and own.startswith("weight")


def load_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a saved state; what belongs to the device stays as it is here."""
    own = ("lr", "fused", "capturable", "foreach")
    groups = [
        {**before, **{name: here[name] for name in own}}
        for before, here in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**saved, "param_groups": groups})
