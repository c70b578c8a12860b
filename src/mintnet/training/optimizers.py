"""The learning rate and the optimizers: AMSGrad, Adam, and Muon for kernels."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.training.recipe import Recipe

MOMENTUM = 0.95
RMS = 0.2  # of Muon's steps at a learning rate of 1, about Adam's (Liu et al., 2025)


def learning_rate(recipe: Recipe, step: int, total: int) -> float:
    """The learning rate of step 0, 1, …, total − 1, a pure function."""
    share = step / max(total, 1)
    if recipe.schedule == "step":
        factor = 0.1 ** sum(share >= milestone for milestone in recipe.milestones)
    elif recipe.schedule == "linear":
        factor = min(1.0, 1.6 * (1 - share))
    else:
        factor = 0.5 * (1 + math.cos(math.pi * share))
    factor *= min(1.0, (step + 1) / max(recipe.warmup, 1))
    return recipe.learning_rate * factor


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AMSGrad or Adam with decoupled decay of kernels, or Muon for kernels and these for others."""
    kernels, others = kernels_of(model)
    device = others[0].device
    cuda = device.type == "cuda"
    # a tensor, so that a captured step can read it; fused: a step is left out if `found_inf` is 1
    options: dict[str, Any] = {"lr": torch.tensor(recipe.learning_rate, device=device)}
    options |= {"eps": recipe.eps, "weight_decay": 0.0, "amsgrad": not recipe.adam}
    options |= {"fused": True, "capturable": cuda}
    if recipe.muon:
        return Muon(kernels, others, torch.bfloat16 if cuda else None, **options)
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


def orthogonalized(matrices: Tensor) -> Tensor:
    """About U Vᵀ for matrices U S Vᵀ (n, rows, columns), by Newton-Schulz steps (Jordan, 2024)."""
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalized(matrices.mT).mT  # the smaller square is cheaper
    a, b, c = 3.4445, -4.7750, 2.0315  # s ↦ a s + b s³ + c s⁵, repeated, takes (0, 1] to about 1
    x: Tensor = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-12)
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Adam):
    r"""Momentum with orthogonal steps for kernels (Muon); Adam for biases, t and the like.

        m ← β m + (1 − β) g,   W ← W − α c U Vᵀ,   where U S Vᵀ = (1 − β) g + β m

    Each kernel is a matrix with one row for each output, c makes entries move by 0.2 α in the root
    mean square, and masked entries stay 0. ``kernels`` come with their masks, None for no mask;
    ``dtype`` is that of the matrix products; ``options`` are those of `torch.optim.Adam`.
    """

    def __init__(
        self,
        kernels: dict[nn.Parameter, Tensor | None],
        others: Sequence[nn.Parameter],
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        self.masks, self.dtype = kernels, dtype
        groups = [{"params": list(kernels)}, {"params": list(others)}]
        super().__init__([group for group in groups if group["params"]], **options)
        stacks: dict[tuple[Any, ...], list[nn.Parameter]] = {}
        for kernel, mask in kernels.items():
            stacks.setdefault((kernel.shape, kernel.dtype, mask is None), []).append(kernel)
        self.stacks = list(stacks.values())  # of one shape, masked or not: moved together

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step; none where ``found_inf`` is 1, as for torch's fused optimizers."""
        groups = self.param_groups
        for stack in self.stacks:
            self._orthogonal_step(stack, groups[0]["lr"])
        self.param_groups = groups[1:] if self.masks else groups
        super().step()
        self.param_groups = groups

    @torch.no_grad()
    def _orthogonal_step(self, stack: list[nn.Parameter], rate: float | Tensor) -> None:
        for kernel in stack:
            if not self.state[kernel]:  # named as Adam's, whose loader reads them back
                self.state[kernel]["step"] = torch.zeros((), device=kernel.device)
                self.state[kernel]["exp_avg"] = torch.zeros_like(kernel)
        moments = [self.state[kernel]["exp_avg"] for kernel in stack]
        before = _matrices(moments)
        gradient = _matrices([k.grad if k.grad is not None else torch.zeros_like(k) for k in stack])
        moment = before.lerp(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(moment, MOMENTUM)
        step = orthogonalized(ahead.to(self.dtype or ahead.dtype)).to(ahead.dtype)
        masks = [mask for kernel in stack if (mask := self.masks[kernel]) is not None]
        mask = _matrices(masks).to(step) if masks else torch.ones_like(step)
        size = mask.sum(dim=(-2, -1), keepdim=True).sqrt() * RMS
        step = step * mask
        step = step * (rate * size / (step.norm(dim=(-2, -1), keepdim=True) + 1e-12))
        bad: Tensor | None = getattr(self, "found_inf", None)
        if bad is not None:
            moment, step = torch.where(bad > 0, before, moment), torch.where(bad > 0, 0, step)
        for kernel, average, new, change in zip(stack, moments, moment, step, strict=True):
            average.copy_(new.view_as(average))
            kernel.sub_(change.view_as(kernel))


def _matrices(kernels: Sequence[Tensor]) -> Tensor:
    """Kernels (out, in, R, R) as matrices (n, out, in · R · R)."""
    return torch.stack([kernel.flatten(1) for kernel in kernels])
