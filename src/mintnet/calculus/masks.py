r"""Masks of triangular linear maps, as pure functions of shapes (Eq. 7).

Hidden layers hold several *copies* of each channel. They are laid out channel-major: copy k of
channel c has index ``c * copies + k``, which makes every mask block-triangular.
"""

import torch
from torch import Tensor


def causal_taps(kernel_size: int, upper: bool = False) -> Tensor:
    """The taps of a channel on itself, (R, R): rows above the centre, and its row up to the centre.

    Examples:
        >>> causal_taps(3).int()
        tensor([[1, 1, 1],
                [1, 1, 0],
                [0, 0, 0]], dtype=torch.int32)
    """
    check_kernel_size(kernel_size)
    taps = torch.arange(kernel_size**2).reshape(kernel_size, kernel_size)
    centre = kernel_size**2 // 2
    return taps >= centre if upper else taps <= centre


def channel_mask(channels: int, kernel_size: int, upper: bool = False) -> Tensor:
    r"""The mask M of Eq. 7: output channel i sees channels j < i wholly and itself causally.

        M[i, j, m, n] = 1   if j < i,  or  j = i and (m, n) not after the centre
                        0   otherwise

    The upper variant is its mirror image in channel, row and column. Shape: (C, C, R, R), boolean.

    Examples:
        >>> channel_mask(2, 1).int().flatten(1).tolist()
        [[1, 0], [1, 1]]
        >>> channel_mask(2, 1, upper=True).int().flatten(1).tolist()
        [[1, 1], [0, 1]]
    """
    check_positive(channels=channels)
    into = torch.arange(channels)[:, None, None]
    out = into[:, None]
    return (into > out if upper else into < out) | ((into == out) & causal_taps(kernel_size, upper))


def pixel_mask(channels: int, kernel_size: int, upper: bool = False) -> Tensor:
    r"""The mask of the pixel order: earlier pixels wholly, and at its own pixel channels j ≤ i.

    Mirrored for ``upper``, and of the same shape, as in `channel_mask`.

    Examples:
        >>> pixel_mask(2, 3)[0].int().flatten(1).tolist()
        [[1, 1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0, 0]]
    """
    check_positive(channels=channels)
    centre = kernel_size // 2
    mask = causal_taps(kernel_size, upper).repeat(channels, channels, 1, 1)
    square = torch.ones(channels, channels, dtype=torch.bool)
    mask[:, :, centre, centre] = square.triu() if upper else square.tril()
    return mask


def conv_mask(
    channels: int,
    copies_out: int,
    copies_in: int,
    kernel_size: int,
    upper: bool = False,
    order: str = "raster",
    strict: bool = False,
) -> Tensor:
    """A mask repeated copies_out × copies_in times, channel-major: Eq. 7, or that of the pixels.

    ``strict`` leaves an entry's own coordinate out, so that it sees earlier ones alone.
    Shape: (channels * copies_out, channels * copies_in, R, R), boolean.

    Examples:
        >>> conv_mask(2, 1, 2, kernel_size=1).int().flatten(1).tolist()
        [[1, 1, 0, 0], [1, 1, 1, 1]]
        >>> conv_mask(2, 1, 2, kernel_size=1, strict=True).int().flatten(1).tolist()
        [[0, 0, 0, 0], [1, 1, 0, 0]]
    """
    check_positive(copies_out=copies_out, copies_in=copies_in)
    if order not in MASKS:
        raise ValueError(f"there is no mask for the order {order!r}; choose {' or '.join(MASKS)}")
    mask = MASKS[order](channels, kernel_size, upper)
    if strict:
        centre = kernel_size // 2
        mask[:, :, centre, centre] &= ~torch.eye(channels, dtype=torch.bool)
    return mask.repeat_interleave(copies_out, dim=0).repeat_interleave(copies_in, dim=1)


MASKS = {"raster": channel_mask, "pixel": pixel_mask}


def dense_mask(
    features: int, copies_out: int, copies_in: int, upper: bool = False, strict: bool = False
) -> Tensor:
    """The mask of a triangular matrix with several copies of each feature.

    Shape: (features * copies_out, features * copies_in), boolean.

    Examples:
        >>> dense_mask(3, 1, 1).int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return conv_mask(features, copies_out, copies_in, 1, upper, strict=strict)[:, :, 0, 0]


def check_positive(**sizes: int) -> None:
    """Raise if a size is not a whole number of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1; got {size!r}")


def check_size(size: tuple[int, ...], vectors: bool = False) -> None:
    """Raise unless it is (height, width), or () where ``vectors`` are possible."""
    if not isinstance(size, tuple | list) or len(size) not in ((0, 2) if vectors else (2,)):
        wanted = "(height, width) of images" + ", or () for vectors" * vectors
        points = "A layer for points of D numbers is MixtureLayer(channels=D, filters=K, size=())."
        raise ValueError(f"size is {wanted}; got {size!r}. {points}")
    check_positive(**dict(zip(("height", "width"), size, strict=False)))


def check_kernel_size(kernel_size: int) -> None:
    """Raise if a kernel size is not odd: only an odd kernel has a centre tap."""
    check_positive(kernel_size=kernel_size)
    if kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be odd, so that it has a centre; got {kernel_size}")
