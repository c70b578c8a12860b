"""Gradients through an inverse, by the implicit function theorem."""

from typing import Any

import torch
from torch import Tensor

from mintnet.precision import true_float32
from mintnet.solvers.base import REMEDY, Evaluate
from mintnet.solvers.solution import checked, own_scale, relative_residual

GRADIENT_TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-10}


def attach_gradient(
    x: Tensor,
    z: Tensor,
    evaluate: Evaluate,
    name: str,
    max_steps: int | None = None,
    weights: tuple[Tensor, ...] = (),
) -> Tensor:
    r"""The solution x of f_θ(x) = z as a differentiable function of z and θ.

    From f_θ(x) = z follows dx = J⁻¹ (dz − ∂_θ f dθ). Backward therefore solves Jᵀ u = g, which
    is triangular, hands u to z, and −u to f_θ at the fixed x, which passes it on to the weights.
    A triangular system ends by itself; for others ``max_steps`` says when to give up.
    ``weights`` are the tensors of θ: backward raises if one of them has changed since.
    """
    with true_float32():
        gap = z - evaluate(x.detach())[0]
    return _Inverse.apply(gap, x.detach(), weights, evaluate, name, max_steps)  # type: ignore[no-any-return,no-untyped-call]


class _Inverse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gap: Tensor, x: Tensor, weights: tuple[Tensor, ...], *equation: Any
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weights, ctx.versions, ctx.equation = weights, _versions(weights), equation
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            remedy = "differentiate the forward map twice instead, or leave out create_graph=True"
            raise RuntimeError(f"second derivatives through an inverse are not available; {remedy}")
        if _versions(ctx.weights) != ctx.versions:
            what = f"the weights of {ctx.equation[1]} were modified in place after its inverse"
            raise RuntimeError(f"{what}: no gradient; call backward before the optimizer's step")
        (x,) = ctx.saved_tensors
        with true_float32():
            return _solve_transposed(x, gradient, *ctx.equation), None, None, None, None, None


def _versions(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(-1 if tensor.is_inference() else tensor._version for tensor in tensors)


def _solve_transposed(
    x: Tensor, g: Tensor, evaluate: Evaluate, name: str, max_steps: int | None
) -> Tensor:
    """u with J(x)ᵀ u = g, by Algorithm 1 with α = 1 on the transposed system; residual-checked."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        y, slope = evaluate(at)
    slope, scale = slope.detach(), own_scale(g)
    floor, tolerance = 16 * torch.finfo(g.dtype).eps, GRADIENT_TOLERANCES[g.dtype]
    best = u = g / slope
    residual, steps = torch.full_like(scale, float("inf")), 0
    for steps in range(max_steps or x.shape[1:].numel() + 2):  # noqa: B007
        (image,) = torch.autograd.grad(y, at, u, retain_graph=True)
        now = relative_residual(image - g, scale)
        better = (now < residual).reshape(-1, *(1,) * (u.dim() - 1))
        stalled = bool(((now > residual / 2) & (residual <= tolerance)).all())
        best, residual = torch.where(better, u, best), torch.minimum(now, residual)
        if bool((residual <= floor).all()) or stalled or not bool(now.isfinite().any()):
            break
        u = u - (image - g) / slope
    name = f"gradient through {name}"
    return checked(name, best, residual, scale, tolerance, steps, steps).require(REMEDY)
