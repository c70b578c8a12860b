"""Muon: kernels move along orthogonal matrices, everything else by AMSGrad or Adam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
RMS = 0.2
"""Of a step of size one, which is about what Adam's steps have (Liu et al., 2025)."""
QUINTIC = (3.4445, -4.7750, 2.0315)
"""s ↦ a s + b s³ + c s⁵ takes all of (0, 1] to about one when it is repeated (Jordan, 2024)."""
REPEATS = 5


def orthogonalized(matrices: Tensor) -> Tensor:
    """About U Vᵀ for matrices U S Vᵀ: all singular values become about one.

    Args:
        matrices: (n, rows, columns).

    Examples:
        >>> s = torch.linalg.svdvals(orthogonalized(torch.randn(2, 5, 30)))
        >>> bool((0.6 < s).all()) and bool((s < 1.3).all())
        True
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalized(matrices.mT).mT  # the smaller square is cheaper
    a, b, c = QUINTIC
    x: Tensor = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-12)
    for _ in range(REPEATS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


def kernels_of(model: nn.Module) -> tuple[dict[nn.Parameter, Tensor | None], list[nn.Parameter]]:
    """Matrices and kernels with the masks of their entries, and all other parameters.

    Examples:
        >>> from mintnet import MintLayer
        >>> kernels, others = kernels_of(MintLayer(3, 4, (8, 8)))
        >>> len(kernels), len(others)  # W¹, W², W³; three biases and t
        (3, 4)
    """
    kernels: dict[nn.Parameter, Tensor | None] = {}
    others = []
    for module in model.modules():
        buffers = dict(module.named_buffers(recurse=False))
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            if parameter.dim() >= 2 and name.startswith("weight"):
                kernels[parameter] = buffers.get(name.replace("weight", "mask"))
            else:
                others.append(parameter)
    return kernels, others


class Muon(torch.optim.Adam):
    r"""Momentum with orthogonal steps for kernels (Muon); Adam for biases, t and the like.

    .. code-block:: text

        m ← β m + (1 − β) g,   W ← W − α c U Vᵀ,   where U S Vᵀ = (1 − β) g + β m

    with each kernel as a matrix of one row for each output, c such that entries move by
    0.2 α in the root mean square, and the entries that a mask clears left where they are.

    Args:
        kernels: kernels with their masks, None for no mask.
        others: parameters for Adam.
        dtype: in which matrices are made orthogonal, where it is not their own; bf16 will do.
        unmasked: share of the step that kernels without a mask take: those of couplings, whose
            scales are exponentials of what comes out of them.
        options: of `torch.optim.Adam`, which others are moved by.

    Examples:
        >>> layer = nn.Linear(4, 3)
        >>> optimizer = Muon({layer.weight: None}, [layer.bias], lr=1e-2)
        >>> layer(torch.ones(2, 4)).square().sum().backward()
        >>> _ = optimizer.step()
    """

    def __init__(
        self,
        kernels: dict[nn.Parameter, Tensor | None],
        others: Sequence[nn.Parameter],
        dtype: torch.dtype | None = None,
        unmasked: float = 1.0,
        **options: Any,
    ) -> None:
        self.masks, self.dtype, self.unmasked = kernels, dtype, unmasked
        groups = [{"params": list(kernels)}, {"params": list(others)}]
        super().__init__([group for group in groups if group["params"]], **options)
        stacks: dict[tuple[Any, ...], list[nn.Parameter]] = {}
        for kernel, mask in kernels.items():
            like = (kernel.shape, kernel.dtype, mask is None)
            stacks.setdefault(like, []).append(kernel)
        self.stacks = list(stacks.values())
        """Kernels of one shape, all or none with a mask, whose steps are found together."""
        self._joined: list[Tensor | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy needs besides what torch's optimizers say of themselves."""
        own = ("masks", "dtype", "unmasked", "stacks", "_joined")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; none where ``found_inf`` says so, as for torch's fused optimizers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        if self._joined is None:
            self._joined = [self._masks(stack) for stack in self.stacks]
        for stack, mask in zip(self.stacks, self._joined, strict=True):
            share = self.unmasked if mask is None else 1.0
            self._orthogonal_step(stack, mask, groups[0]["lr"] * share)
        try:
            self.param_groups = [g for g in groups if not self.masks or g is not groups[0]]
            super().step()
        finally:
            self.param_groups = groups
        return loss

    @torch.no_grad()
    def _orthogonal_step(
        self, stack: list[nn.Parameter], mask: Tensor | None, rate: float | Tensor
    ) -> None:
        for kernel in stack:
            if not self.state[kernel]:  # named as Adam names its own, which reads them back
                self.state[kernel]["step"] = torch.zeros((), device=kernel.device)
                self.state[kernel]["exp_avg"] = torch.zeros_like(kernel)
        moments = [self.state[kernel]["exp_avg"] for kernel in stack]
        before = _matrices(moments)
        gradient = _matrices([k.grad if k.grad is not None else torch.zeros_like(k) for k in stack])
        moment = before.lerp(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(moment, MOMENTUM)
        step = orthogonalized(ahead.to(self.dtype or ahead.dtype)).to(ahead.dtype)
        moving = torch.ones_like(step, dtype=torch.bool) if mask is None else mask
        size = moving.sum(dim=(-2, -1), keepdim=True).sqrt() * RMS
        step = step * moving
        step = step * (rate * size / (step.norm(dim=(-2, -1), keepdim=True) + 1e-12))
        bad: Tensor | None = getattr(self, "found_inf", None)
        if bad is not None:
            moment, step = torch.where(bad > 0, before, moment), torch.where(bad > 0, 0, step)
        for kernel, average, new, change in zip(stack, moments, moment, step, strict=True):
            average.copy_(new.view_as(average))
            kernel.sub_(change.view_as(kernel))

    def _masks(self, stack: list[nn.Parameter]) -> Tensor | None:
        masks = [mask for kernel in stack if (mask := self.masks[kernel]) is not None]
        return _matrices(masks).bool() if masks else None


def _matrices(kernels: Sequence[Tensor]) -> Tensor:
    """Kernels (out, in, R, R) as matrices (n, out, in · R · R)."""
    return torch.stack([kernel.flatten(1) for kernel in kernels])
