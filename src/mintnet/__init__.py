"""Invertible networks built from triangular blocks (MintNet, NeurIPS 2019)."""

from mintnet import bijections, flows
from mintnet.bijections import *  # noqa: F403
from mintnet.calculus import NotProvedError, OrderingError, Proof, certify, variable
from mintnet.distributions import BijectionTransform, FlowDistribution, accelerate
from mintnet.flows import *  # noqa: F403
from mintnet.models import Classifier, Flow, MintNet, ResNet, VectorFlow, import_original
from mintnet.solvers import (
    Auto,
    Bisection,
    FixedPoint,
    InversionError,
    ResidualIteration,
    Solution,
    Status,
    StructureError,
    Wavefront,
)

__version__ = "0.1.0"

__all__ = [
    "Auto",
    "BijectionTransform",
    "Bisection",
    "Classifier",
    "FixedPoint",
    "Flow",
    "FlowDistribution",
    "InversionError",
    "MintNet",
    "NotProvedError",
    "OrderingError",
    "Proof",
    "ResNet",
    "ResidualIteration",
    "Solution",
    "Status",
    "StructureError",
    "VectorFlow",
    "Wavefront",
    "accelerate",
    "certify",
    "import_original",
    "variable",
]
__all__ += bijections.__all__
__all__ += flows.__all__
