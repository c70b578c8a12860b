"""The learning rate and the optimizer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.training.muon import Muon
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
    elif recipe.schedule == "linear":
        factor = min(1.0, 1.6 * (1 - share))
    else:
        factor = 0.5 * (1 + math.cos(math.pi * share))
    if recipe.warmup:
        factor *= min(1.0, (step + 1) / recipe.warmup)
    return recipe.learning_rate * factor


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AMSGrad or Adam with decoupled decay of kernels, or Muon for kernels and these for the rest.

    It leaves a step out where ``found_inf`` is 1. The learning rate is a tensor, so that a captured
    step can read it.
    """
    kernels, others = kernels_of(model)
    device = others[0].device
    options: dict[str, Any] = {
        "lr": torch.tensor(recipe.learning_rate, device=device),
        "eps": recipe.eps,
        "weight_decay": 0.0,
        "amsgrad": not recipe.adam,
        "fused": True,
        "capturable": device.type == "cuda",
    }
    if recipe.muon:
        products = torch.bfloat16 if device.type == "cuda" else None
        return Muon(kernels, others, products, **options)
    decaying: dict[str, Any] = {"params": list(kernels), "weight_decay": recipe.weight_decay}
    return torch.optim.AdamW([decaying, {"params": others}], **options)


def kernels_of(model: nn.Module) -> tuple[dict[nn.Parameter, Tensor | None], list[nn.Parameter]]:
    """Matrices and kernels, which alone decay, with their masks; and all other parameters."""
    kernels: dict[nn.Parameter, Tensor | None] = {}
    others = []
    for module in model.modules():
        buffers = dict(module.named_buffers(recurse=False))
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and parameter.dim() >= 2 and name.startswith("weight"):
                kernels[parameter] = buffers.get(name.replace("weight", "mask"))
            elif parameter.requires_grad:
                others.append(parameter)
    return kernels, others


def load_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a saved state; what belongs to the device stays as it is here."""
    own = ("lr", "fused", "capturable", "foreach")
    groups = [
        {**before, **{name: here[name] for name in own}}
        for before, here in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**saved, "param_groups": groups})
