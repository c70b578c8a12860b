"""MAF: masked autoregressive flows, dense and convolutional; IAF is the same layer inverted."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor, nn

from mintnet.bijections.inverse import Inverse
from mintnet.calculus import MaskedConv2d, MaskedLinear, Ordering, Quantity, activation, variable
from mintnet.calculus.masks import check_positive
from mintnet.flows.affine import AffineLayer
from mintnet.flows.networks import set_to_zero
from mintnet.solvers import Evaluate

Q = TypeVar("Q", bound=Quantity)
Masked = MaskedLinear | MaskedConv2d


class MAF(AffineLayer):
    r"""An affine autoregressive layer (Papamakarios, Pavlakou and Murray, 2017):

    .. code-block:: text

        yᵢ = σ(s(x₁, …, xᵢ₋₁)) · xᵢ + m(x₁, …, xᵢ₋₁),    σ > 0

    s and m come from masked dense layers (MADE) or masked convolutions, of which the first sees
    strictly earlier entries: they have slope 0, and the layer is in F, affine in each entry.

    Args:
        shape: of one sample: (D,) for masked dense layers, (C, H, W) for masked convolutions.
        filters: K; the hidden width is D · K, or C · K.
        layers: hidden layers, at least 1.
        upper: see later entries instead of earlier ones.
        kernel_size: of the masked convolutions, odd.
        activation: h, one of elu, tanh, sigmoid, softplus, leaky_relu.
        scale: σ: exp, softplus, sigmoid, bounded; ``raw`` has no positive σ and is refused.

    Examples:
        >>> import torch
        >>> maf = MAF((5,), filters=2)
        >>> x = torch.randn(3, 5)
        >>> bool(torch.allclose(maf.inverse(maf(x)[0]), x, atol=1e-5))
        True
        >>> MAF((2, 4, 4), filters=3, scale="raw")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mintnet.calculus.proof.NotProvedError: MAF 2×4×4 in the lower raster ordering is ...
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        filters: int = 1,
        layers: int = 2,
        upper: bool = False,
        kernel_size: int = 3,
        activation: str = "elu",
        scale: str = "bounded",
    ) -> None:
        super().__init__(shape, Ordering(upper), scale)
        check_positive(filters=filters, layers=layers)
        if len(shape) not in (1, 3):
            raise ValueError(f"MAF takes vectors (D,) or images (C, H, W); got {tuple(shape)}")
        self.h = _activation(activation)

        def masked(into: int, out: int, strict: bool = False) -> Masked:
            if len(shape) == 1:
                return MaskedLinear(shape[0], into, out, upper, strict=strict)
            return MaskedConv2d(shape[0], into, out, kernel_size, upper, strict=strict)

        hidden = [masked(1, filters, strict=True)]
        hidden += [masked(filters, filters) for _ in range(layers - 1)]
        self.hidden = nn.ModuleList(hidden)
        self.to_scale, self.to_shift = masked(filters, 1), masked(filters, 1)
        self.prove()
        for head in (self.to_scale, self.to_shift):  # a fresh layer is the identity
            set_to_zero(head)

    def function(self, x: Q) -> Q:
        v = x
        for layer in self.hidden:
            v = self.h(layer(v))
        return x * self.scale(self.to_scale(v)) + self.to_shift(v)  # type: ignore[no-any-return]

    def evaluator(self) -> Evaluate:
        """The same without the slopes of hidden layers, which are all exactly 0."""
        maps = [layer.linear_map() for layer in self.hidden]  # type: ignore[operator]
        to_scale, to_shift = self.to_scale.linear_map(), self.to_shift.linear_map()

        def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
            v = x
            for linear in maps:
                v = self.h.value_and_slope(linear(v))[0]
            scale = self.scale(variable(to_scale(v))).data
            return scale * x + to_shift(v), scale

        return evaluate


def iaf(shape: tuple[int, ...], *arguments: Any, **options: Any) -> Inverse:
    """An inverse autoregressive layer (Kingma et al., 2016): a MAF run backwards.

    Its inverse is one evaluation, which makes samples cheap; its forward map, which likelihoods
    need, is the inversion of a MAF. Arguments are those of `MAF`.

    Examples:
        >>> import torch
        >>> iaf((4,), filters=2)(torch.randn(2, 4))[1].shape
        torch.Size([2])
    """
    return Inverse(MAF(shape, *arguments, **options))


_activation = activation  # the constructor's argument of the same name hides it
