"""The triangular calculus: values with slopes, masks, linear maps, activations and proofs."""

from mintnet.calculus.conditioner import Conditioner, HalfConditioner
from mintnet.calculus.elementwise import (
    ACTIVATIONS,
    ELU,
    Arctan,
    Elementwise,
    Exp,
    LeakyReLU,
    Sigmoid,
    Softplus,
    Tanh,
    activation,
)
from mintnet.calculus.linear import Convolution, Dense, LinearMap, MaskedConv2d, MaskedLinear
from mintnet.calculus.masks import causal_taps, channel_mask, conv_mask, dense_mask, pixel_mask
from mintnet.calculus.ordering import LOWER, UPPER, Ordering, OrderingError
from mintnet.calculus.proof import NotProvedError, Proof, Verdict, certify
from mintnet.calculus.quantity import (
    Composition,
    Function,
    Identity,
    Product,
    Quantity,
    Scaled,
    Shifted,
    Sum,
)
from mintnet.calculus.range import Range, unbounded
from mintnet.calculus.value import Value, variable

__all__ = ["Composition", "Function", "Identity", "Product", "Quantity", "Scaled", "Shifted", "Sum"]
__all__ += ["Range", "Value", "unbounded", "variable"]
__all__ += ["ACTIVATIONS", "Elementwise", "activation"]
__all__ += ["ELU", "Arctan", "Exp", "LeakyReLU", "Sigmoid", "Softplus", "Tanh"]
__all__ += ["Convolution", "Dense", "LinearMap", "MaskedConv2d", "MaskedLinear"]
__all__ += ["causal_taps", "channel_mask", "conv_mask", "dense_mask", "pixel_mask"]
__all__ += ["Conditioner", "HalfConditioner"]
__all__ += ["LOWER", "UPPER", "Ordering", "OrderingError"]
__all__ += ["NotProvedError", "Proof", "Verdict", "certify"]
