"""The Mint layer (Eq. 2) and its pairing."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet import calculus
from mintnet.bijections.chain import Chain
from mintnet.bijections.mint_evaluator import MintEvaluator
from mintnet.bijections.triangular import Q, TriangularBijection
from mintnet.calculus import Convolution, Ordering, conv_mask
from mintnet.calculus.linear import constrained
from mintnet.calculus.masks import check_positive, check_size
from mintnet.solvers import System
from mintnet.solvers.levels import LevelMap

T_FLOOR = 1e-2  # the least t: binds nothing in trained models, and is large enough for a bracket
T_FORMS = ("softplus", "absolute")


class MintLayer(TriangularBijection):
    r"""The masked invertible layer of Eq. 2, written with three masked convolutions (App. B):

        L(x) = t ⊙ x + W³ ⊛ h(W² ⊛ h(W¹ ⊛ x + b¹) + b²) + b³

    with t > 0 and, for all copies, diag(W³ᵢ) diag(W²ᵢⱼ) diag(W¹ⱼ) ≥ 0, so that diag J ≥ t always.

    Args:
        channels: C.
        filters: K; the hidden width is C · K.
        size: (H, W).
        upper: triangular from the other end.
        activation: h, one of elu, tanh, sigmoid, softplus, leaky_relu.
        kernel_size: R, odd.
        t_form: ``softplus`` (with a floor of 0.01), or ``absolute`` for weights trained with |t|.

    Shapes: (batch, C, H, W) → (batch, C, H, W), (batch,).

    Examples:
        >>> layer = MintLayer(channels=3, filters=4, size=(8, 8))
        >>> x = torch.randn(2, 3, 8, 8)
        >>> y, log_det = layer(x)
        >>> bool(torch.allclose(layer.inverse(y), x, atol=1e-5))
        True
        >>> low, high = layer.slope_bounds()
        >>> bool((low >= layer.t).all())
        True
    """

    mask1: Tensor
    mask2: Tensor
    mask3: Tensor
    weight1: nn.Parameter
    weight2: nn.Parameter
    weight3: nn.Parameter
    bias1: nn.Parameter
    bias2: nn.Parameter
    bias3: nn.Parameter

    def __init__(
        self,
        channels: int,
        filters: int,
        size: tuple[int, int],
        upper: bool = False,
        activation: str = "elu",
        kernel_size: int = 3,
        t_form: str = "softplus",
    ) -> None:
        super().__init__()
        check_positive(channels=channels, filters=filters)
        check_size(size)
        if t_form not in T_FORMS:
            raise ValueError(f"unknown t_form {t_form!r}; choose one of {', '.join(T_FORMS)}")
        self.channels, self.filters, self.kernel_size = channels, filters, kernel_size
        self.event_shape, self.ordering = (channels, *size), Ordering(upper)
        self.activation_name, self.t_form = activation, t_form
        self.h = calculus.activation(activation)
        for index, (out, into) in enumerate(((filters, 1), (filters, filters), (1, filters)), 1):
            mask = conv_mask(channels, out, into, kernel_size, upper)
            self.register_buffer(f"mask{index}", mask, persistent=False)
            self.register_parameter(f"weight{index}", nn.Parameter(torch.empty(mask.shape)))
            self.register_parameter(f"bias{index}", nn.Parameter(torch.empty(mask.shape[0])))
        self.raw_t = nn.Parameter(torch.empty(self.event_shape))
        self.reset_parameters()
        hidden = channels * filters  # three convolutions, one multiplication and addition a tap
        self.work = 2.0 * kernel_size**2 * hidden * (hidden + 2 * channels) * size[0] * size[1]

    @property
    def biases(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.bias1, self.bias2, self.bias3

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The paper's start: near the identity. Xavier normal with gain 0.005, t = 1."""
        weights = (self.weight1, self.weight2, self.weight3)
        for weight, bias in zip(weights, self.biases, strict=True):
            nn.init.xavier_normal_(weight, gain=0.005)
            bound = 1 / math.sqrt(weight[0].numel())
            nn.init.uniform_(bias, -bound, bound)
        self.raw_t.fill_(1.0 if self.t_form == "absolute" else math.log(math.expm1(1 - T_FLOOR)))

    @property
    def t(self) -> Tensor:
        """The positive factor of x, (C, H, W)."""
        if self.t_form == "absolute":
            return self.raw_t.abs().clamp(min=1e-12)
        return T_FLOOR + F.softplus(self.raw_t)

    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """W¹, W², W³ as they act: masked, and W² with the signs of the constraint (Eq. 4)."""
        w1, w3 = self.weight1 * self.mask1, self.weight3 * self.mask3
        return w1, constrained(self.weight2, w1, w3, self.channels, self.mask2), w3

    def function(self, x: Q) -> Q:
        """Eq. 2 in the calculus."""
        h, parts = self.h, zip(self.weights(), self.biases, strict=True)
        w1, w2, w3 = (Convolution(w, b, self.channels, self.ordering) for w, b in parts)
        return self.t * x + h(h(x.through(w1)).through(w2)).through(w3)  # type: ignore[no-any-return]

    def evaluator(self) -> MintEvaluator:
        """Eq. 2 and the diagonal of its Jacobian (Eq. 3), in fewer passes than the calculus."""
        return MintEvaluator.of(self.weights(), self.biases, self.t, self.h, self.ordering.upper)

    def value(self, x: Tensor) -> Tensor:
        return self.evaluator().value(x)

    def system(self) -> System:
        return replace(super().system(), levels=self.levels)

    def levels(self, x: Tensor) -> LevelMap | None:
        """The layer level by level, for x on a GPU where that has a kernel."""
        if not x.is_cuda:
            return None
        from mintnet.bijections.mint_kernel import MintLevels  # it imports Triton

        found = MintLevels(self.evaluator(), self.ordering)
        return found if found.can_solve(x) else None

    def start(self, z: Tensor) -> Tensor:
        """x₀ = z / t, as in the paper."""
        return z / self.t

    def require_proof(self) -> None:
        """Nothing to ask: diag J ≥ t > 0 whatever the weights are."""

    def slope_floor(self) -> tuple[Tensor, Tensor]:
        return self.t, torch.ones_like(self.t)

    @property
    def name(self) -> str:
        order, shape = str(self.ordering).split()[0], "×".join(map(str, self.event_shape))
        return f"{order} MintLayer {shape}, K = {self.filters}"

    def extra_repr(self) -> str:
        return f"{self.name}, {self.activation_name}, kernel_size={self.kernel_size}"


def paired_mint(
    channels: int,
    filters: int,
    size: tuple[int, int],
    activation: str = "elu",
    kernel_size: int = 3,
    t_form: str = "softplus",
) -> Chain:
    """A lower Mint layer, then an upper one: together they see everything around a pixel.

    Examples:
        >>> pair = paired_mint(1, 4, (6, 6))
        >>> [part.ordering.upper for part in pair.parts]
        [False, True]
    """
    options = activation, kernel_size, t_form
    return Chain(*(MintLayer(channels, filters, size, upper, *options) for upper in (False, True)))
