"""MaCow: affine layers that see the rows (or columns) before their own."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.bijections.chain import Chain
from mintnet.calculus import Conditioner, Ordering, Quantity
from mintnet.calculus.masks import check_positive
from mintnet.flows.affine import AffineLayer
from mintnet.flows.networks import set_to_zero

Q = TypeVar("Q", bound=Quantity)

DIRECTIONS = {
    "down": Ordering(False, "row"),
    "up": Ordering(True, "row"),
    "right": Ordering(False, "column"),
    "left": Ordering(True, "column"),
}
"""The order in which rows or columns follow each other."""


class RowConditioner(Conditioner):
    r"""A network of strictly earlier rows: a convolution of the rows above, then 1 × 1 ones.

    The image is moved down by one row, so that a kernel of ``reach`` rows whose last row is the
    pixel's own sees nothing but rows above. Everything after it acts on each pixel alone. The
    other directions are the same on a flipped or transposed image. Arguments are those of
    `MaCowLayer`, and how many ``outputs`` there are for each entry.
    """

    def __init__(
        self, channels: int, hidden: int, outputs: int, direction: str, reach: int, breadth: int
    ) -> None:
        super().__init__()
        if direction not in DIRECTIONS:
            raise ValueError(
                f"unknown direction {direction!r}; choose one of {', '.join(DIRECTIONS)}"
            )
        check_positive(channels=channels, hidden=hidden, reach=reach, breadth=breadth)
        if breadth % 2 == 0:
            raise ValueError(f"breadth must be odd, so that it has a centre; got {breadth}")
        self.ordering, self.outputs = DIRECTIONS[direction], outputs
        self.reach, self.breadth = reach, breadth
        self.first = nn.Conv2d(channels, hidden, (reach, breadth))
        self.middle = nn.Conv2d(hidden, hidden, 1)
        self.last = nn.Conv2d(hidden, outputs * channels, 1)
        set_to_zero(self.last)

    def forward(self, data: Tensor) -> tuple[Tensor, ...]:
        side = self.breadth // 2
        rows = F.pad(self._downwards(data)[:, :, :-1], (side, side, self.reach, 0))
        found = self.last(F.elu(self.middle(F.elu(self.first(rows)))))
        return self._downwards(found, back=True).chunk(self.outputs, 1)

    def _downwards(self, image: Tensor, back: bool = False) -> Tensor:
        """The image turned so that what comes first is above; or back again."""
        if back and self.ordering.upper:
            image = image.flip(2)
        if self.ordering.name == "column":
            image = image.transpose(2, 3)
        return image.flip(2) if self.ordering.upper and not back else image

    def levels(self, shape: tuple[int, ...]) -> Tensor:
        axis = 2 if self.ordering.name == "column" else 1
        place = torch.arange(shape[axis])
        place = place.flip(0) if self.ordering.upper else place
        return (place[:, None] if axis == 1 else place).expand(shape)


class MaCowLayer(AffineLayer):
    r"""The masked layer of MaCow (Ma, Kong, Zhang and Hovy, 2019):

    .. code-block:: text

        y = σ(s(earlier rows)) ⊙ x + m(earlier rows),    σ > 0

    In F in the row (or column) order, affine in each entry's own coordinate. A whole row is
    solved at once, so that the inverse takes as many evaluations as there are rows.

    Args:
        shape: (C, H, W).
        direction: down, up, right or left: the way in which rows or columns follow each other.
        hidden: the width of the network.
        reach: how many earlier rows are seen.
        breadth: how wide the kernel is, odd.
        scale: σ, see `RealNVPCoupling`; ``raw`` is refused.

    Examples:
        >>> layer = MaCowLayer((2, 6, 4), "up", hidden=8)
        >>> layer.certify().onto
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
        conditioner = RowConditioner(shape[0], hidden, 2, direction, reach, breadth)
        super().__init__(shape, conditioner.ordering, scale)
        self.conditioner = conditioner
        self.prove()

    def function(self, x: Q) -> Q:
        raw, shift = x.conditioned(self.conditioner)
        return x * self.scale(raw) + shift


def macow_unit(shape: tuple[int, ...], hidden: int = 64, scale: str = "sigmoid") -> Chain:
    """Four layers that see the image from above, below, left and right.

    Examples:
        >>> [str(part.ordering) for part in macow_unit((2, 4, 4), 8).parts][:2]
        ['lower row ordering', 'upper row ordering']
    """
    return Chain(*(MaCowLayer(shape, way, hidden, scale=scale) for way in DIRECTIONS))
