"""True float32: what is certified must be what is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def true_float32() -> Iterator[None]:
    """Switch TF32 off inside: recent GPUs round the factors of float32 products to 10 bits.

    Examples:
        >>> with true_float32():
        ...     torch.backends.cudnn.allow_tf32
        False
    """
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    if before == (False, False):
        yield
        return
    convolutions.allow_tf32 = products.allow_tf32 = False
    try:
        yield
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before
