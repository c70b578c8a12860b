"""Triangular maps whose channels can be solved in blocks, as solvers see them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

Evaluate = Callable[..., tuple[Tensor, Tensor]]
"""x ↦ (f(x), diag J(x)), both of the shape of x; of a block, (x, given) ↦ the same."""


class Blocks(ABC):
    """A triangular f whose channels fall into blocks, each of itself and those before it."""

    @property
    @abstractmethod
    def channels(self) -> list[slice]:
        """Of each block, in the order in which they are solved."""

    @abstractmethod
    def evaluator(self, index: int) -> Evaluate:
        """(x, given) ↦ (f(x), diag J(x)) of one block, but for the offset of `Solved.given`."""

    @abstractmethod
    def start(self, index: int, z: Tensor) -> Tensor:
        """x₀ of one block."""

    @abstractmethod
    def begin(self, z: Tensor) -> Solved:
        """Nothing solved yet."""


class Solved(ABC):
    """The blocks that are solved, and what they bring to the next one."""

    @abstractmethod
    def given(self) -> tuple[Tensor, Tensor]:
        """What the evaluator of the next block takes beside x, and what it leaves out of f(x)."""

    @abstractmethod
    def add(self, x: Tensor, given: Tensor) -> None:
        """Take in the next block as solved."""
