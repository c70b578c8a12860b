"""Layers that are affine in each entry's own coordinate: couplings and autoregressive layers."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet.bijections.triangular import TriangularBijection
from mintnet.calculus import Ordering
from mintnet.flows.networks import scale_function


class AffineLayer(TriangularBijection):
    """y = scale(earlier entries) ⊙ x + shift(earlier entries).

    With a scale that is positive by construction the layer is onto whatever its weights are: the
    proof made when it is built holds for good. The scale ``raw`` is proved again for the weights as
    they are, or refused. A subclass writes `function`, and its constructor calls `prove` while
    its weights are random: with weights of 0 much is true by accident. ``scale`` is the name of
    its scale, or None if that is always 1.
    """

    def __init__(self, shape: tuple[int, ...], ordering: Ordering, scale: str | None) -> None:
        super().__init__()
        self.event_shape, self.ordering = tuple(shape), ordering
        self.scale_name = scale
        self.scale = scale_function("exp" if scale is None else scale)

    def prove(self) -> None:
        """Raise `NotProvedError`, with the part to blame, unless `certify` proves the layer."""
        self.certify().require_injective(self.name)

    def require_proof(self) -> None:
        if self.scale_name == "raw":
            self.prove()

    def slope_floor(self) -> tuple[Tensor, Tensor]:
        """Nothing but the sign."""
        return torch.zeros(()), torch.ones(())

    @property
    def name(self) -> str:
        shape = "×".join(map(str, self.event_shape))
        return f"{type(self).__name__} {shape} in the {self.ordering}"

    def extra_repr(self) -> str:
        return self.name if self.scale_name is None else f"{self.name}, scale {self.scale_name}"
