"""True float32: what is certified must be what is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def true_float32() -> Iterator[None]:
    """Switch TF32 off inside: recent GPUs round the factors of float32 products to 10 bits.

    Convolutions are then chosen by measuring them once for each shape. By its own rules cuDNN
    takes Fourier transforms for true float32 with many channels, which are ten times slower.

    Examples:
        >>> with true_float32():
        ...     torch.backends.cudnn.allow_tf32
        False
    """
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32, convolutions.benchmark
    convolutions.allow_tf32 = products.allow_tf32 = False
    convolutions.benchmark = True
    try:
        yield
    finally:
        convolutions.allow_tf32, products.allow_tf32, convolutions.benchmark = before
