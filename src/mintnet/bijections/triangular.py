"""Bijections with a triangular Jacobian, from anything written with the calculus."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from inspect import ismethod
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.bijections.base import Bijection, unreadable
from mintnet.calculus import LOWER, Ordering, Proof, certify, variable
from mintnet.calculus.expression import trace
from mintnet.calculus.quantity import Q as Q
from mintnet.calculus.value import within_range
from mintnet.solvers import REALS, Auto, Evaluate, Solution, Solver, System
from mintnet.solvers.gradient import attach_gradient


class TriangularBijection(Bijection):
    """A bijection whose Jacobian is triangular in one ordering.

    A subclass sets ``event_shape`` and writes the map once with the calculus (`function`); the
    log-determinant, the proof of invertibility and the inverse follow from it. It may say how
    value and slope are computed faster (`evaluator`), where solvers begin (`start`), and what is
    known of the slopes without a proof (`slope_floor`, `require_proof`).

    Examples:
        >>> from mintnet.calculus import Tanh
        >>> class Bend(TriangularBijection):
        ...     event_shape = (3,)
        ...     def function(self, x):
        ...         return 2.0 * x + Tanh()(x)
        >>> Bend().inverse(torch.zeros(1, 3))
        tensor([[0., 0., 0.]])
    """

    event_shape: tuple[int, ...]
    ordering: Ordering
    _proof: Proof | None = None
    work: float = 0.0
    """Multiplications and additions of one evaluation for one sample; 0 if they are not known."""

    @abstractmethod
    def function(self, x: Q) -> Q:
        """The map, written with the calculus."""

    def __getattr__(self, name: str) -> Any:
        if name == "ordering":  # of a subclass that does not say; a property would hide its errors
            self.ordering = trace(self.function).ordering or LOWER
            return self.ordering
        return super().__getattr__(name)

    def evaluator(self) -> Evaluate:
        """x ↦ (f(x), diag J(x)) for the weights as they are; solvers call it many times."""
        expression = trace(self.function)

        def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
            y = expression.on(variable(x))
            return y.data, y.slope

        return evaluate

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x) and diag J(x), both of the shape of x; in evaluation mode the map is proved."""
        if not self.training and not unreadable(x):
            self.require_proof()
        return self.evaluator()(x)

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, slope = self.evaluate(x)
        logs = slope.abs().log()
        if unreadable(x) or bool(within_range(logs)):
            return y, logs
        return self._exact_log_slopes(x)

    def _exact_log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same in float64, where slopes of x's own dtype would be 0 or infinite."""
        y = trace(self.function).on(variable(x.double()))
        logs = y.slope.abs().log()
        if not unreadable(x) and not bool(y.data.isnan().any() | within_range(logs)):
            why = "a slope is 0 or beyond float64"
            raise ValueError(f"the log-determinant of {self.name} is not finite: {why}")
        return y.data.to(x), logs.to(x)

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, slopes = self.log_slopes(x)
        return y, slopes.flatten(1).sum(1)

    def value(self, x: Tensor) -> Tensor:
        return self.evaluate(x)[0]

    def start(self, z: Tensor) -> Tensor:
        """Where solvers begin: one Newton step from 0, coordinate by coordinate."""
        y, slope = self.evaluate(torch.zeros_like(z))
        start = (z - y) / slope
        return torch.where(start.isfinite(), start, 0.0)

    def certify(self) -> Proof:
        """What is proved of this map with its present weights, coordinate by coordinate."""
        return certify(self.function, self.event_shape)

    def proof(self) -> Proof:
        """What `certify` gives, made again only if something has changed that the map reads."""
        if self._proof is None or not self._proof.holds_for(self.function):
            self._proof = self.certify()
        return self._proof

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_proof": None}  # what it is made of cannot always be copied

    def slope_bounds(self) -> tuple[Tensor, Tensor]:
        """Bounds of diag J that hold for every input, each of the shape of one sample."""
        proof = self.certify()
        return proof.low, proof.high

    def slope_floor(self) -> tuple[Tensor, Tensor]:
        """A lower bound of |diag J|, 0 if none is known, and the sign of diag J."""
        proof = self.proof()
        sign = torch.where(proof.sign < 0, -1.0, 1.0)
        return torch.maximum(proof.low, -proof.high).clamp(min=0), sign

    def require_proof(self) -> None:
        """Raise `NotProvedError` unless the map is invertible with its present weights."""
        self.proof().require_injective(self.name)

    def image(self) -> tuple[Tensor | float, Tensor | float]:
        self.require_proof()  # where there is nothing to prove, the map is onto
        proof = self._proof
        return REALS if proof is None or proof.onto else (proof.least, proof.most)

    @property
    def name(self) -> str:
        return type(self).__name__

    def system(self) -> System:
        equation = self.name, self.evaluator(), self.start, self.ordering
        return System(*equation, lambda: trace(self.function), self.slope_floor, work=self.work)

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        self.require_proof()
        return (solver or Auto()).attempt(self.system(), z)

    def refine(self, z: Tensor, near: Solution, solver: Solver | None = None) -> Solution:
        return (solver or Auto()).attempt(replace(self.system(), near=near.value.to(z)), z)

    def attach(self, x: Tensor, z: Tensor) -> Tensor:
        weights = (*self.parameters(), *self.buffers())
        return attach_gradient(x, z, self.evaluate, self.name, weights=weights)


class Composed(TriangularBijection):
    r"""A function of the calculus as a bijection, if it can be proved to be one.

    The function is a `Function`, or any callable written with the calculus; ``shape`` is that of
    one sample, (C, H, W) or (D,). The proof is made when the bijection is built, and again when it
    is inverted, or evaluated in evaluation mode, and something that the function is made of has
    changed. ``insist`` uses it even if nothing is proved. Slopes are computed in float64.

    Examples:
        >>> from mintnet.calculus import ELU, Identity, MaskedConv2d, Tanh
        >>> inner = ELU() @ MaskedConv2d(1)
        >>> Composed(inner * inner, (1, 4, 4))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mintnet.calculus.proof.NotProvedError: Composed is not proved to be invertible (...
        >>> Composed(3.0 * Identity() + Tanh(), (2,)).slope_bounds()[0]
        tensor([3., 3.], dtype=torch.float64)
    """

    def __init__(
        self, function: Callable[[Any], Any], shape: tuple[int, ...], insist: bool = False
    ) -> None:
        super().__init__()
        self.event_shape, self.inner, self.insist = tuple(shape), function, insist
        if ismethod(function) and isinstance(function.__self__, nn.Module):
            self.owner = function.__self__  # so that its weights belong to this module
        self.require_proof()

    def function(self, x: Q) -> Q:
        return self.inner(x)  # type: ignore[no-any-return]

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.training and not unreadable(x):
            self.require_proof()
        return self._exact_log_slopes(x)

    @property
    def codomain(self) -> tuple[float, float]:
        self.require_proof()
        return self.proof().image

    def require_proof(self) -> None:
        proof = self.proof()  # which also sees whether the parts fit
        if not self.insist:
            proof.require_injective(self.name)
