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
from mintnet.distributions import BijectionTransform, FlowDistribution
from mintnet.models import Classifier, Flow, MintNet, ResNet, import_original
from mintnet.solvers import (
    Auto,
    Bisection,
    FixedPoint,
    InversionError,
    Solution,
    Status,
    Wavefront,
)

__version__ = "0.1.0"

__all__ = [
    "ActNorm",
    "Auto",
    "BatchNorm",
    "Bijection",
    "BijectionTransform",
    "Bisection",
    "Certificate",
    "Chain",
    "Classifier",
    "Composed",
    "FixedPoint",
    "Flip",
    "Flow",
    "FlowDistribution",
    "InversionError",
    "Logit",
    "MintLayer",
    "MintNet",
    "NotProvedError",
    "OrderingError",
    "ResNet",
    "Solution",
    "Squeeze",
    "Status",
    "Wavefront",
    "certify",
    "import_original",
    "paired_mint",
    "variable",
]
