"""True float32: what is verified must be what is computed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_changing = threading.Lock()
_inside = 0
_before: tuple[bool, bool, bool] = (False, False, False)


@contextmanager
def true_float32() -> Iterator[None]:
    """Switch TF32 and autocast off inside: what is verified must be what is computed.

    Convolutions are chosen by measuring them once for each shape: by its own rules cuDNN takes
    Fourier transforms for true float32 with many channels, which are ten times slower. TF32 is a
    setting of the whole process; it is restored when the last thread has left. What torch.compile
    or torch.export makes of a model runs with the settings of whoever calls it.
    """
    global _inside, _before
    if torch.compiler.is_compiling():  # such settings are not part of a traced graph
        yield
        return
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    with _changing:
        if _inside == 0:
            _before = convolutions.allow_tf32, products.allow_tf32, convolutions.benchmark
        _inside += 1
        convolutions.allow_tf32 = products.allow_tf32 = False
        convolutions.benchmark = True
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        with _changing:
            _inside -= 1
            if _inside == 0:
                convolutions.allow_tf32, products.allow_tf32, convolutions.benchmark = _before
