"""Bijections with a triangular Jacobian, from anything written with the calculus."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from hashlib import sha256
from inspect import ismethod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mintnet.bijections.base import Bijection
from mintnet.calculus import LOWER, Function, Ordering, Proof, Quantity, certify, variable
from mintnet.calculus.expression import trace
from mintnet.solvers import REMEDY, Auto, Blocks, Solution, Solver, System, attach_gradient

Q = TypeVar("Q", bound=Quantity)
Evaluator = Callable[[Tensor], tuple[Tensor, Tensor]]


class TriangularBijection(Bijection):
    """A bijection whose Jacobian is triangular in one ordering.

    A subclass writes the map once with the calculus (`function`), from which the proof of
    invertibility comes, and says how its value and slope are computed (`evaluator`).
    """

    event_shape: tuple[int, ...]
    ordering: Ordering
    capturable = False
    """Whether `evaluator` is made of parameters and buffers alone, with nothing read back to the
    host, so that a CUDA graph of it stays true when they change in place."""

    @abstractmethod
    def function(self, x: Q) -> Q:
        """The map, written with the calculus."""

    @abstractmethod
    def evaluator(self) -> Evaluator:
        """x ↦ (f(x), diag J(x)) for the weights as they are; solvers call it many times."""

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x) and diag J(x), both of the shape of x."""
        return self.evaluator()(x)

    @abstractmethod
    def start(self, z: Tensor) -> Tensor:
        """Where solvers begin."""

    @abstractmethod
    def slope_facts(self) -> tuple[Tensor, Tensor]:
        """A lower bound of |diag J| and the sign of diag J, for solvers."""

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, slope = self.evaluate(x)
        return y, slope.abs().log().flatten(1).sum(1)

    def certify(self) -> Proof:
        """What is proved of this map with its present weights, coordinate by coordinate."""
        return certify(self.function, self.event_shape)

    def slope_bounds(self) -> tuple[Tensor, Tensor]:
        """Bounds of diag J that hold for every input, each of the shape of one sample."""
        certificate = self.certify()
        return certificate.low, certificate.high

    def system(self) -> System:
        """The equation f(x) = z as solvers see it."""
        return System(
            name=str(self.name),
            evaluate=_Lazy(self.evaluator),
            start=self.start,
            ordering=self.ordering,
            expression=lambda: trace(self.function),
            slope_facts=self.slope_facts,
            memory=self._memory(),
            renew=self.evaluator if self.capturable else None,
            tensors=lambda: (*self.parameters(), *self.buffers()),
            blocks=self.blocks,
        )

    blocks: Callable[[], Blocks | None] | None = None
    """The map in blocks that can be solved one after the other, where it has such parts."""

    @property
    def name(self) -> str:
        """How messages call this layer."""
        return type(self).__name__

    @abstractmethod
    def require_proof(self) -> None:
        """Raise `NotProvedError` unless the map is invertible with its present weights."""

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        self.require_proof()
        return (solver or Auto()).solve(self.system(), z)

    def differentiable_inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        x = self.find(z.detach(), solver).require(REMEDY)
        weights = (*self.parameters(), *self.buffers())
        return attach_gradient(x, z, self.evaluate, self.name, weights=weights)

    def __getstate__(self) -> dict[str, Any]:
        """Copies begin without what solvers have learnt: a recorded CUDA graph has no copy."""
        return {k: v for k, v in self.__dict__.items() if k != "_solver_memory"}

    def _memory(self) -> dict[Any, Any]:
        memory: dict[Any, Any] = self.__dict__.setdefault("_solver_memory", {})
        return memory


class _Lazy:
    """An evaluator that is made when it is first called: a replayed solve never calls it."""

    def __init__(self, make: Callable[[], Evaluator]) -> None:
        self.make = make
        self.made: Evaluator | None = None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.made is None:
            self.made = self.make()
        return self.made(x)


def by_the_calculus(function: Callable[[Any], Any]) -> Evaluator:
    """Value and slope of a function as the calculus computes them."""

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        y = function(variable(x))
        return y.data, y.slope

    return evaluate


class Composed(TriangularBijection):
    r"""A function of the calculus as a bijection, if it can be proved to be one.

    The proof is made from the weights as they are: when the bijection is built, and again when
    they have changed and it is inverted, or used in evaluation mode.

    Args:
        function: a `Function`, or any callable written with the calculus.
        shape: the shape of one sample, (C, H, W) or (D,).
        insist: use it even if nothing is proved.

    Examples:
        >>> from mintnet.calculus import ELU, Identity, MaskedConv2d
        >>> inner = ELU() @ MaskedConv2d(1)
        >>> Composed(inner * inner, (1, 4, 4))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mintnet.calculus.proof.NotProvedError: Composed is not proved to be invertible (...
        >>> from mintnet.calculus import Tanh
        >>> Composed(3.0 * Identity() + Tanh(), (2,)).slope_bounds()[0]
        tensor([3., 3.], dtype=torch.float64)
    """

    def __init__(
        self,
        function: Function | Callable[[Any], Any],
        shape: tuple[int, ...],
        insist: bool = False,
    ) -> None:
        super().__init__()
        self.event_shape = tuple(shape)
        self.inner = function
        if ismethod(function) and isinstance(function.__self__, nn.Module):
            self.owner = function.__self__  # so that its weights belong to this module
        self.insist = insist
        self.ordering = trace(self.function).ordering or LOWER
        self._proved_for: bytes | None = None
        self._proof: Proof
        self.require_proof()

    def function(self, x: Q) -> Q:
        return self.inner(x)  # type: ignore[no-any-return]

    def evaluator(self) -> Evaluator:
        if not self.training:  # in training, weights change with every step
            self.require_proof()
        return by_the_calculus(self.function)

    @property
    def codomain(self) -> tuple[float, float]:
        self.require_proof()
        return self._proof.image

    def start(self, z: Tensor) -> Tensor:
        """One Newton step from 0, coordinate by coordinate."""
        y, slope = self.evaluate(torch.zeros_like(z))
        start = (z - y) / slope
        return torch.where(start.isfinite(), start, 0.0)

    def slope_facts(self) -> tuple[Tensor, Tensor]:
        proof = self.certify()
        sign = torch.where(proof.sign < 0, -1.0, 1.0)
        return torch.maximum(proof.low, -proof.high).clamp(min=0), sign

    def require_proof(self) -> None:
        present = self._fingerprint()
        if present is not None and present == self._proved_for:
            return
        proof = self.certify()
        if not self.insist:
            proof.require_injective(type(self).__name__)
        self._proof, self._proved_for = proof, present

    def _fingerprint(self) -> bytes | None:
        """A digest of the weights; None where they cannot all be known, inside a plain function."""
        if not isinstance(self.inner, nn.Module) and not hasattr(self, "owner"):
            return None
        digest = sha256()
        for tensor in (*self.parameters(), *self.buffers()):
            content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(content.numpy().tobytes())
        return digest.digest()
