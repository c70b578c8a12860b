"""What every bijection is: a map with its log-determinant, and an inverse that is verified."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from mintnet.calculus import NotProvedError
from mintnet.graphs import is_capturing
from mintnet.precision import true_float32
from mintnet.solvers import REALS, REMEDY, TOLERANCES, Solution, Solver, Status, verified
from mintnet.solvers.solution import checked, own_scale, relative_residual


class Bijection(nn.Module, ABC):
    """An invertible map of samples of one shape.

    Calling it gives ``(y, log_det)`` with log_det = log |det J(x)| of shape (batch,).
    `inverse` gives x back or raises; `solve` gives a `Solution` and lets the caller decide.
    A new one derives from `AnalyticBijection` (two methods: `transform` and `invert`) or from
    `TriangularBijection` (one: `function`). Checks of what users pass in happen once, here.
    """

    event_shape: tuple[int, ...] | None = None
    """The shape of one input sample, or None where any shape will do."""

    domain: tuple[float, float] = REALS
    """The interval that input entries must lie in."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and log |det J(x)|. Shapes: (batch, ...), (batch,)."""
        domain = self.domain_of(x.dtype) if isinstance(x, Tensor) else REALS
        check_input(x, self.event_shape, type(self).__name__, domain)
        self.check_dtype(x)
        with true_float32():  # also under autocast
            y, log_det = self.transform(x)
        if not unreadable(x) and not bool(log_det.isfinite().all() & y.isfinite().all()):
            what, wrong = "value", ~y.flatten(1).isfinite().all(1)
            if not bool(log_det.isfinite().all()):
                what, wrong = "log-determinant", ~log_det.isfinite()
            bad = wrong.nonzero().flatten().tolist()
            where = f"for {len(bad)} of {len(x)} samples (the first: sample {bad[0]})"
            why = "entries near the end of the domain or too large, or weights that are not finite"
            raise ValueError(f"the {what} of {type(self).__name__} is not finite {where}: {why}")
        return y, log_det

    def inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        """x with f(x) = z, verified; raises `InversionError` otherwise. Differentiable."""
        check_input(z, self.output_shape, f"the inverse of {type(self).__name__}")
        x = self.solve(z, solver).require(REMEDY)
        wanted = z.requires_grad or any(p.requires_grad for p in self.parameters())
        return self.attach(x, z) if torch.is_grad_enabled() and wanted else x

    @torch.no_grad()
    def solve(self, z: Tensor, solver: Solver | None = None) -> Solution:
        """x with f(x) = z as a `Solution`, which says for each sample whether it is verified.

        `mintnet.solvers.verified` says what that means. Samples with NaN or infinite entries, or
        outside of the image, are reported as such and do not touch the others.
        """
        check_input(z, self.output_shape, f"the inverse of {type(self).__name__}", finite=False)
        self.check_dtype(z)
        check_solver(solver)
        _check_invertible(self, z)
        return verified(
            lambda z, rows: self.rows(rows).seek(z, solver),
            lambda x, rows: self.rows(rows).value(x),
            z,
            self.tolerance_of(z.dtype, solver),
            self.domain_of(z.dtype),
            again=solver is None or solver.tolerance is None,
            refine=lambda z, rows, near: self.rows(rows).seek(z, solver, near),
        )

    def seek(
        self, z: Tensor, solver: Solver | None = None, near: Solution | None = None
    ) -> Solution:
        """What `find`, or `refine` near a solution, gives for the samples within the image."""
        image = self.image()
        within, remark = (z, "") if image is REALS else _within_image(z, *image)
        found = self.refine(within, near, solver) if near else self.find(within, solver)
        if not remark:
            return found
        outside = ~within.flatten(1).isfinite().all(1) & z.flatten(1).isfinite().all(1)
        status = found.status.masked_fill(outside, Status.NO_PREIMAGE)
        return replace(found, status=status, remark=remark)

    def tolerance_of(self, dtype: torch.dtype, solver: Solver | None) -> float:
        return (solver.tolerance if solver else None) or TOLERANCES.get(dtype, 1e-2)

    def domain_of(self, dtype: torch.dtype) -> tuple[float, float]:
        """The domain, less the ends at which numbers of this dtype would overflow."""
        return self.domain

    def image(self) -> tuple[Tensor | float, Tensor | float]:
        """An open interval for each output entry, or for all of them, that holds all outputs."""
        return self.codomain

    def rows(self, chosen: Tensor) -> Bijection:
        """The bijection of some samples of a batch: itself, if it treats all samples alike."""
        return self

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        return self.event_shape

    @property
    def codomain(self) -> tuple[float, float]:
        """An interval that holds all output entries; it may hold values that no input gives."""
        return REALS

    @abstractmethod
    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward` computes, without checks of the input."""

    def value(self, x: Tensor) -> Tensor:
        """What `transform` computes, without the log-determinant."""
        return self.transform(x)[0]

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and the logarithm of |diag J(x)| for each entry of x; their sum is the log-determinant.

        Only triangular bijections and permutations, whose slopes count as 1, have it.
        """
        if (leaves := self.leaves()) == [self]:
            why = "so that its log-determinant is no sum over entries; use the log-determinant"
            raise ValueError(f"{type(self).__name__} is not triangular, {why}")
        total = torch.zeros_like(x)
        for index, leaf in enumerate(leaves):
            x, slopes = leaf.log_slopes(x)
            for before in reversed(leaves[:index]):
                slopes = before.to_input_order(slopes)
            total = total + slopes
        return x, total

    def to_input_order(self, z: Tensor) -> Tensor:
        """Output entries where the input entries are that they belong to: permutations undone."""
        for leaf in reversed([leaf for leaf in self.leaves() if leaf is not self]):
            z = leaf.to_input_order(z)
        return z

    def leaves(self) -> list[Bijection]:
        """The bijections that this one applies one after the other: itself, if it has no parts."""
        return [self]

    @abstractmethod
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        """x with f(x) = z in the arithmetic of z, which `solve` then verifies."""

    def refine(self, z: Tensor, near: Solution, solver: Solver | None = None) -> Solution:
        """What `find` gives, in float64; it may begin at a solution in float32."""
        return self.find(z, solver)

    @abstractmethod
    def attach(self, x: Tensor, z: Tensor) -> Tensor:
        """x, which solves f(x) = z, as a differentiable function of z and the weights."""

    def check_dtype(self, x: Tensor) -> None:
        """Raise ValueError unless x and all weights are float32, or all are float64."""
        own = {p.dtype for p in self.parameters() if p.is_floating_point()} or {x.dtype}
        if own != {x.dtype} or x.dtype not in TOLERANCES:
            wanted = f"{type(self).__name__} runs in float32 or float64, input and weights alike"
            got = f"{x.dtype} and {' and '.join(sorted(map(str, own)))}"
            raise ValueError(f"{wanted}; got {got}. Take, say, x.float() or layer.double().")


class AnalyticBijection(Bijection):
    """A bijection whose inverse is a formula. It is verified all the same."""

    @abstractmethod
    def invert(self, z: Tensor) -> Tensor:
        """x with f(x) = z, by formula."""

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        value, unit = self.invert(z).to(z.dtype), own_scale(z)
        residual = relative_residual(self.value(value) - z, unit)
        finite = z.flatten(1).isfinite().all(1)
        rounding = residual < TOLERANCES[torch.float32]  # float32 itself is judged in float64
        failure = torch.where(rounding, int(Status.INACCURATE), int(Status.DISAGREES))
        failure = failure.masked_fill(~finite, int(Status.NOT_FINITE))
        tolerance = self.tolerance_of(z.dtype, solver)
        return checked(type(self).__name__, value, residual, unit, tolerance, failure=failure)

    def attach(self, x: Tensor, z: Tensor) -> Tensor:
        found = self.invert(z)
        return x + (found - found.detach())


class EntrywiseBijection(AnalyticBijection):
    """An analytic bijection of each entry by itself, given by `log_slopes` and `invert`."""

    @abstractmethod
    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and log |∂y/∂x| of each entry, both of the shape of x."""

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, slopes = self.log_slopes(x)
        return y, slopes.flatten(1).sum(1)


def check_input(
    x: Tensor,
    event_shape: tuple[int, ...] | None,
    name: str,
    domain: tuple[float, float] = REALS,
    finite: bool = True,
) -> None:
    """Raise ValueError unless x is a finite batch of floating-point samples of that shape."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name} expects a floating-point tensor; got {kind}")
    if event_shape is not None and tuple(x.shape[1:]) != event_shape:
        shape = ", ".join(map(str, ("batch", *event_shape)))
        raise ValueError(f"{name} expects input of shape ({shape}); got {tuple(x.shape)}")
    if event_shape is None and x.dim() < 2:
        raise ValueError(f"{name} expects a batch of samples; got shape {tuple(x.shape)}")
    if not finite or unreadable(x):
        return
    if not bool(x.isfinite().all()):
        bad = (~x.flatten(1).isfinite().all(1)).nonzero().flatten().tolist()
        got = f"NaN or infinite entries in {len(bad)} of {len(x)} samples"
        raise ValueError(f"{name} expects finite numbers; got {got} (the first: sample {bad[0]})")
    if domain != REALS and bool(((x < domain[0]) | (x > domain[1])).any()):
        got = f"values from {float(x.min()):.4g} to {float(x.max()):.4g}"
        raise ValueError(f"{name} expects entries in [{domain[0]:g}, {domain[1]:g}]; got {got}")


def check_solver(solver: object) -> None:
    """Raise ValueError unless it is a solver, or None for the default one."""
    if solver is None or isinstance(solver, Solver):
        return
    what = f"the class {solver.__name__}" if isinstance(solver, type) else repr(solver)
    raise ValueError(f"expected a solver such as mintnet.Auto() or mintnet.Wavefront(); got {what}")


def _within_image(z: Tensor, low: Tensor | float, high: Tensor | float) -> tuple[Tensor, str]:
    """z with NaN where no x can give it, and a sentence about the first such entry."""
    ends = (torch.as_tensor(end, dtype=torch.float64, device=z.device) for end in (low, high))
    least, most = (end.expand(z.shape[1:]) for end in ends)
    outside = ((z <= least) | (z >= most)) & z.isfinite()
    if not bool(outside.any()):
        return z, ""
    sample, *entry = outside.nonzero()[0].tolist()
    value, first, last = (float(part[tuple(entry)]) for part in (z[sample], least, most))
    span = f"values of this map lie between {first:g} and {last:g} there"
    remark = f"Entry {tuple(entry)} of sample {sample} is {value:g}, and {span}."
    return z.masked_fill(outside, float("nan")), remark


def unreadable(x: Tensor) -> bool:
    """Whether values cannot be read back, so that what needs them was checked before."""
    inside_vmap = torch._C._functorch.maybe_current_level() is not None
    return is_capturing(x) or torch.compiler.is_compiling() or inside_vmap


def _check_invertible(module: nn.Module, z: Tensor) -> None:
    """Raise where outputs depend on other samples or on chance, or with forward-mode tangents."""
    name, tensors = type(module).__name__, (z, *module.parameters())
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        ways = "backward() or the forward map, whose Jacobian at x is the inverse of the one wanted"
        raise NotImplementedError(f"an inverse has no forward-mode derivatives; use {ways}")
    weights = [*module.parameters(), *module.buffers()]
    if not bool(torch.stack([w.isfinite().all() for w in (z.new_zeros(()), *weights)]).all()):
        fault = "holds weights that are NaN or infinite, so that it has no inverse"
        raise NotProvedError(f"{name} {fault}. Load or train them again.")
    for part in module.modules():
        own = isinstance(part, _BatchNorm) and (part.training or part.running_mean is None)
        if own or (isinstance(part, _DropoutNd) and part.training and part.p > 0):
            what = "the other samples of the batch" if own else "chance"
            fault = f"a {type(part).__name__} whose outputs depend on {what}"
            raise ValueError(f"{name} has {fault}: a sample has no inverse. Call .eval() first.")
