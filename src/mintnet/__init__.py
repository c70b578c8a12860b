"""Invertible networks built from triangular blocks (MintNet, NeurIPS 2019)."""

from mintnet.bijections import (
    ActNorm,
    BatchNorm,
    Bijection,
    Chain,
    Composed,
    Flip,
    Logit,
    MintLayer,
    Squeeze,
    paired_mint,
)
from mintnet.calculus import Certificate, NotProvedError, OrderingError, certify, variable
from mintnet.models import MintNet
from mintnet.solvers import Bisection, FixedPoint, InversionError, Solution, Status

__version__ = "0.1.0"

__all__ = [
    "ActNorm",
    "BatchNorm",
    "Bijection",
    "Bisection",
    "Certificate",
    "Chain",
    "Composed",
    "FixedPoint",
    "Flip",
    "InversionError",
    "Logit",
    "MintLayer",
    "MintNet",
    "NotProvedError",
    "OrderingError",
    "Solution",
    "Squeeze",
    "Status",
    "certify",
    "paired_mint",
    "variable",
]
