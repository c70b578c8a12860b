"""What a verified inverse states, the same for every bijection, solver and device.

A sample x is *verified* as the solution of f(x) = z if

1. x is finite and lies in the domain of f, and z in the image of f where that is known;
2. |f(x) − z| ≤ tolerance × unit in every entry, with f evaluated in float64 at the very x that is
   returned, and beside other samples than those that it was solved with;
3. the unit is the sample's own scale max |z| however small that is, and for z = 0, which has no
   scale, it is max |f(0)|: what x has to make up for;
4. where z is float64, f at x (1 + 2 ε), with ε = 2.2e-16, differs from f(x) by no more than that:
   where it does, rounding alone would decide whether x passes.

How x was found does not matter. Where a float32 solve does not pass, the sample is solved again in
float64 and the result is rounded; if that does not pass either, the sample is not verified.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from mintnet.precision import true_float32
from mintnet.solvers.solution import Solution, Status, fill_failures, improved, relative_residual

TOLERANCES = {torch.float32: 5e-6, torch.float64: 1e-12}  # of a layer; chains have their own
Domain = tuple[float, float]
REALS = (-float("inf"), float("inf"))
ROUNDED_OFF = 0.1  # rounding is to blame if the residual before is below this share of that after
CHECKED_AT_ONCE = {"cpu": 2**13, "cuda": 2**20}  # entries: more would leave the caches of a CPU
LARGE = 2e7  # multiplications of a sample from which on torch's float64 convolutions are slow

# Functions of some samples, the given rows of the batch.
Attempt = Callable[[Tensor, Tensor], Solution]  # (z, rows) ↦ a solution, verified or not
Refine = Callable[[Tensor, Tensor, Solution], Solution]  # (z, rows, near) ↦ one in float64
Value = Callable[[Tensor, Tensor], Tensor]  # (x, rows) ↦ f(x)


class InFloat64(TorchFunctionMode):
    """Inside, every torch function takes and returns float64 in the place of narrower floats.

    Weights stay as they are: what a module computes inside is what its float64 copy computes. Steps
    of solvers are not captured as CUDA graphs here, since `masked_conv2d` looks at weights.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = _wide(args), {k: _wide(v) for k, v in (kwargs or {}).items()}
        return _wide((masked_conv2d if func is torch.conv2d else func)(*args, **kwargs))


def masked_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """torch's conv2d, faster for large masked float64 weights: taps of 0 are left out.

    With the image as one long row, a tap is a product of matrices at an offset.

    Examples:
        >>> x, weight = torch.randn(2, 64, 30, 30).double(), torch.randn(64, 64, 3, 3).double()
        >>> y = torch.conv2d(x, weight, padding=1)
        >>> torch.allclose(masked_conv2d(x, weight, padding=1), y)
        True
    """
    plain = groups == 1 and all(step in (1, (1, 1)) for step in (stride, dilation))
    large = x.dim() == 4 and weight.numel() * x.shape[-2:].numel() >= LARGE
    if not (plain and large) or isinstance(padding, str):
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    down, across = (padding, padding) if isinstance(padding, int) else padding
    height, width = (n + 2 * p for n, p in zip(x.shape[2:], (down, across), strict=True))
    flat = F.pad(x, (across, across, down, down + 1)).flatten(2)
    rows = height - weight.shape[2] + 1
    found = x.new_zeros(len(x), len(weight), rows * width)
    for block, y in zip(weight.chunk(4), found.chunk(4, 1), strict=True):  # of output channels
        for down, across in (block != 0).flatten(0, 1).any(0).nonzero().tolist():
            begin, used = down * width + across, block[:, :, down, across].any(0).nonzero()
            seen = slice(int(used.min()), int(used.max()) + 1)
            part = flat[:, seen, begin : begin + rows * width]
            y.baddbmm_(block[:, seen, down, across].expand(len(x), -1, -1), part)
    whole: Tensor = found.unflatten(2, (rows, width))[..., : width - weight.shape[3] + 1]
    return whole if bias is None else whole + bias[:, None, None]


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    return type(value)(map(_wide, value)) if type(value) in (tuple, list) else value


@torch.no_grad()
def verified(
    attempt: Attempt,
    value: Value,
    z: Tensor,
    tolerance: float,
    domain: Domain = REALS,
    again: bool = True,
    refine: Refine | None = None,
) -> Solution:
    """What ``attempt`` finds, verified as stated above; ``again``: in float64 where it fails.

    There ``refine`` may begin at what was found in float32. Samples that float64 solves, but no
    float32 rounding of the solution, are INACCURATE.
    """
    rows = torch.arange(len(z), device=z.device)
    with true_float32():
        found = _judged(attempt(z, rows), value, z, rows, tolerance, domain)
        left = ~found.converged & z.flatten(1).isfinite().all(1)
        if z.dtype == torch.float64 or not again:
            return found
        plain: Refine = lambda z, rows, near: attempt(z, rows)  # noqa: E731
        for solve in (refine, plain) if refine else (plain,):
            if not bool(left.any()):
                break
            some, goal = rows[left], z[left].double()
            with InFloat64():
                wide = solve(goal, some, found.rows(left))
            rounded = wide.rows(slice(None), dtype=z.dtype)
            rest = _judged(rounded, value, z[left], some, tolerance, domain)
            found = improved(found, rest, left)
            # Where rounding failed, what was rounded is much better; elsewhere try another solve.
            missed = ~rest.converged
            if bool(missed.any()):
                exact = _judged(wide, value, goal, some, tolerance, domain)
                rounding = missed & (exact.residual < ROUNDED_OFF * rest.residual)
                found.status[some[rounding]] = int(Status.INACCURATE)
                missed = missed & wide.converged & ~rounding
            left = left.masked_scatter(left, missed)
        return found


def _judged(
    found: Solution, value: Value, z: Tensor, rows: Tensor, tolerance: float, domain: Domain
) -> Solution:
    """The solution with residual, unit and status by the statement above."""
    x, target = found.value, z.double()
    with InFloat64():
        filled = x.nan_to_num(0.0, 0.0, 0.0)  # samples that failed must not disturb the others
        excess = _image(value, filled, rows) - target
        unit = target.abs().flatten(1).amax(1)
        zero = unit == 0
        if bool(zero.any()):
            unit[zero] = value(torch.zeros_like(x[zero]), rows[zero]).abs().flatten(1).amax(1)
        moved = torch.zeros_like(unit)
        if z.dtype == torch.float64:
            near = filled * (1 + 2 * torch.finfo(z.dtype).eps)
            moved = (_image(value, near, rows) - target - excess).abs().flatten(1).amax(1)
    unit = unit.clamp(min=torch.finfo(unit.dtype).tiny)
    residual = relative_residual(excess, unit)
    residual[~x.isfinite().flatten(1).all(1)] = float("inf")
    inside = ((x >= domain[0]) & (x <= domain[1])).flatten(1).all(1)
    rounding = (moved > tolerance * unit) & moved.isfinite()  # it may have left the domain of f
    passed = inside & (residual <= tolerance) & ~rounding
    doubt = torch.where(inside, int(Status.INACCURATE), int(Status.DISAGREES))
    failure = torch.where(found.converged, doubt, found.status)
    status = torch.where(passed, int(Status.CONVERGED), failure)
    residual, unit = residual.to(found.residual.dtype), unit.to(found.unit.dtype)
    x = fill_failures(x, status)
    return replace(found, value=x, status=status, residual=residual, unit=unit)


def _image(value: Value, x: Tensor, rows: Tensor) -> Tensor:
    """f(x), a few samples at a time or beside a sample of zeros: other neighbours than before."""
    limit = CHECKED_AT_ONCE.get(x.device.type, CHECKED_AT_ONCE["cpu"])
    size = max(1, limit // max(1, x[:1].numel()))
    if 1 < len(x) <= size:
        return value(torch.cat([x, torch.zeros_like(x[:1])]), torch.cat([rows, rows[:1]]))[:-1]
    return torch.cat([value(*part) for part in zip(x.split(size), rows.split(size), strict=True)])
