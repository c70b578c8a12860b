"""Autoregressive flows: MAF, its inverse IAF, and MaCow, which goes row by row."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet import calculus
from mintnet.bijections.chain import Chain, Inverse
from mintnet.bijections.triangular import Q
from mintnet.calculus import Conditioner, MaskedConv2d, MaskedLinear, Ordering, variable
from mintnet.calculus.masks import check_positive
from mintnet.flows.couplings import AffineLayer, check_shape, set_to_zero
from mintnet.solvers import Evaluate

DIRECTIONS = {"down": Ordering(False, "row"), "up": Ordering(True, "row")}
DIRECTIONS |= {"right": Ordering(False, "column"), "left": Ordering(True, "column")}


class MAF(AffineLayer):
    """yᵢ = σ(s(x₁, …, xᵢ₋₁)) · xᵢ + m(x₁, …, xᵢ₋₁) with σ > 0 (Papamakarios et al., 2017).

    s and m come from masked dense layers (MADE) for shapes (D,), or masked convolutions for
    (C, H, W), of width D · K or C · K for K = ``filters``. The first sees strictly earlier entries
    (with ``upper``, later ones): s and m have slope 0, and the layer is in F, affine in each entry.
    ``scale`` is σ: exp, softplus, sigmoid or bounded.

    Examples:
        >>> maf, x = MAF((5,), filters=2), torch.randn(3, 5)
        >>> bool(torch.allclose(maf.inverse(maf(x)[0]), x, atol=1e-5))
        True
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
        check_shape(shape)
        check_positive(filters=filters, layers=layers)
        self.h = calculus.activation(activation)

        def masked(into: int, out: int, strict: bool = False) -> MaskedLinear | MaskedConv2d:
            if len(shape) == 1:
                return MaskedLinear(shape[0], into, out, upper, strict=strict)
            return MaskedConv2d(shape[0], into, out, kernel_size, upper, strict=strict)

        later = (masked(filters, filters) for _ in range(layers - 1))
        self.hidden = nn.ModuleList([masked(1, filters, strict=True), *later])
        self.to_scale, self.to_shift = masked(filters, 1), masked(filters, 1)
        self.require_proof()
        set_to_zero(self.to_scale)  # a fresh layer is the identity
        set_to_zero(self.to_shift)

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
                v = self.h.value(linear(v))
            scale = self.scale(variable(to_scale(v))).data
            return scale * x + to_shift(v), scale

        return evaluate


def iaf(shape: tuple[int, ...], *arguments: Any, **options: Any) -> Inverse:
    """An inverse autoregressive layer (Kingma et al., 2016): a `MAF` of these arguments, backwards.

    Its inverse, which samples need, is one evaluation; its forward map is the inversion of a MAF.
    """
    return Inverse(MAF(shape, *arguments, **options))


class RowConditioner(Conditioner):
    """A network of strictly earlier rows: a convolution of the rows above, then 1 × 1 ones.

    The image is moved down by one row, so that a kernel whose last row is the pixel's own sees
    nothing but rows above. Other directions are the same on a flipped or transposed image.
    """

    outputs = 2

    def __init__(self, channels: int, hidden: int, way: str, reach: int, breadth: int) -> None:
        super().__init__()
        if way not in DIRECTIONS:
            raise ValueError(f"unknown direction {way!r}; choose one of {', '.join(DIRECTIONS)}")
        check_positive(channels=channels, hidden=hidden, reach=reach, breadth=breadth)
        if breadth % 2 == 0:
            raise ValueError(f"breadth must be odd, so that it has a centre; got {breadth}")
        self.ordering, self.reach, self.breadth = DIRECTIONS[way], reach, breadth
        self.first = nn.Conv2d(channels, hidden, (reach, breadth))
        self.middle = nn.Conv2d(hidden, hidden, 1)
        self.last = nn.Conv2d(hidden, self.outputs * channels, 1)
        set_to_zero(self.last)

    def forward(self, data: Tensor) -> tuple[Tensor, ...]:
        columns, upper = self.ordering.name == "column", self.ordering.upper
        image = data.transpose(2, 3) if columns else data
        image = image.flip(2) if upper else image  # what comes first is above now
        side = self.breadth // 2
        rows = F.pad(image[:, :, :-1], (side, side, self.reach, 0))
        found = self.last(F.elu(self.middle(F.elu(self.first(rows)))))
        found = found.flip(2) if upper else found
        return tuple((found.transpose(2, 3) if columns else found).chunk(self.outputs, 1))

    def levels(self, shape: tuple[int, ...]) -> Tensor:
        rows = self.ordering.name == "row"
        place = torch.arange(shape[1 if rows else 2])
        place = place.flip(0) if self.ordering.upper else place
        return (place[:, None] if rows else place).expand(shape)


class MaCowLayer(AffineLayer):
    """y = σ(s(earlier rows)) ⊙ x + m(earlier rows) with σ > 0 (Ma, Kong, Zhang and Hovy, 2019).

    In F in the row (or column) order. A whole row is solved at once, so that the inverse takes as
    many evaluations as there are rows. They follow each other in ``direction``: down, up, right or
    left. ``reach`` earlier ones are seen, by a kernel of ``breadth``, odd.

    Examples:
        >>> MaCowLayer((2, 6, 4), "up", hidden=8).certify().onto
        True
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        direction: str = "down",
        hidden: int = 64,
        reach: int = 2,
        breadth: int = 5,
        scale: str = "sigmoid",
    ) -> None:
        if len(shape) != 3:
            raise ValueError(f"MaCowLayer takes images (C, H, W); got {tuple(shape)}")
        conditioner = RowConditioner(shape[0], hidden, direction, reach, breadth)
        super().__init__(shape, conditioner.ordering, scale)
        self.conditioner = conditioner
        self.require_proof()

    def function(self, x: Q) -> Q:
        raw, shift = x.conditioned(self.conditioner)
        return x * self.scale(raw) + shift


def macow_unit(shape: tuple[int, ...], hidden: int = 64) -> Chain:
    """Four layers that see the image from above, below, left and right."""
    return Chain(*(MaCowLayer(shape, way, hidden) for way in DIRECTIONS))
