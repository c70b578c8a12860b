"""Increasing functions of each entry, with parameters from strictly earlier entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from mintnet.calculus.interval import Interval
from mintnet.calculus.linear import LinearMap
from mintnet.calculus.ordering import Ordering

Convolve = Callable[[int, Tensor | None], Tensor]
"""(number of a convolution, its input) ↦ its output; None stands for x itself."""


class MonotoneMap(ABC):
    """yᵢ = g(xᵢ; θᵢ), increasing in xᵢ, with θᵢ any function of strictly earlier entries of x.

    The diagonal of its Jacobian is ∂g/∂xᵢ, whatever θ is. A subclass makes sure by its formula that
    g is increasing and takes every real value, and by the way in which it is built that θᵢ depends
    on earlier entries alone, in the sense of its ``ordering``.
    """

    ordering: Ordering

    @abstractmethod
    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """g(xᵢ; θᵢ(x)) and ∂g/∂xᵢ, both of the shape of x."""

    @abstractmethod
    def slope_range(self, shape: tuple[int, ...]) -> Interval:
        """Bounds of ∂g/∂xᵢ for all inputs, (1, *shape)."""

    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that g and θ are computed from: with a NaN in it nothing is proved."""

    def convolutions(self) -> list[LinearMap] | None:
        """The masked convolutions (of vectors: matrices) behind θ, for the wavefront, or None.

        Those that read x itself are strict.
        """
        return None

    reads_input: tuple[int, ...] = ()
    """Which of `convolutions` read x itself."""

    def constants(self, context: Tensor | None) -> tuple[Tensor, ...]:
        """What `solve_level` needs beside the outputs of the convolutions."""
        return ()

    def solve_level(
        self, convolve: Convolve, constants: tuple[Tensor, ...], target: Tensor, channels: slice
    ) -> Tensor:
        """x of the entries of one level with g(x; θ) = target, (A, n·B), A channels.

        ``convolve`` gives the outputs of `convolutions` there, (A, K_out, n·B), from their inputs.
        Nothing is read back to the host, so that a GPU can capture it.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        return type(self).__name__
