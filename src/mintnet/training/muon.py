"""Muon: momentum with orthogonal steps for kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
RMS = 0.2
"""Root mean square of Muon's steps at a learning rate of 1, about Adam's (Liu et al., 2025)."""
QUINTIC = (3.4445, -4.7750, 2.0315)
"""s ↦ a s + b s³ + c s⁵, repeated, takes all of (0, 1] to about 1 (Jordan, 2024)."""


def orthogonalized(matrices: Tensor) -> Tensor:
    """About U Vᵀ for matrices U S Vᵀ of shape (n, rows, columns), by Newton-Schulz iteration."""
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalized(matrices.mT).mT  # the smaller square is cheaper
    a, b, c = QUINTIC
    x: Tensor = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-12)
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Adam):
    r"""Momentum with orthogonal steps for kernels (Muon); Adam for biases, t and the like.

    .. code-block:: text

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
        self.stacks = list(stacks.values())
        """Kernels of one shape, all or none with a mask, whose steps are computed together."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; none where ``found_inf`` is 1, as for torch's fused optimizers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        for stack in self.stacks:
            self._orthogonal_step(stack, groups[0]["lr"])
        try:
            self.param_groups = [g for g in groups if not self.masks or g is not groups[0]]
            super().step()
        finally:
            self.param_groups = groups
        return loss

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
