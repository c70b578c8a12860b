"""The rules of the calculus for some entries of a sample, as the walks over levels need them."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet.calculus.expression import Expression, Operation

Dual = tuple[Tensor, Tensor | None]
"""A value and its slope; None stands for the slope 1 of the input itself."""


def combine(node: Expression, sources: list[Dual], constant: Tensor | float) -> Dual:
    """The value and the slope of a node that acts on each entry by itself."""
    (v, s), *rest = sources
    match node.operation:
        case Operation.ELEMENTWISE:
            assert node.function is not None
            value, slope = node.function.value_and_slope(v)
            return value, slope if s is None else slope * s
        case Operation.ADD:
            u, r = rest[0]
            return v + u, (1.0 if s is None else s) + (torch.ones_like(u) if r is None else r)
        case Operation.MULTIPLY:
            u, r = rest[0]
            return v * u, (u if s is None else s * u) + (v if r is None else v * r)
        case Operation.SCALE:
            factor = torch.as_tensor(constant, dtype=v.dtype, device=v.device)
            return v * factor, factor.expand_as(v) if s is None else s * factor
        case _:
            return v + constant, s
