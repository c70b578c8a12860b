"""Reading pickled batches without running what they name: arrays and plain containers only."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from mintnet.data.dataset import DataError
from mintnet.data.paths import reason

# Taken from arrays themselves, since their home in numpy moved from `core` to `_core`.
_RECONSTRUCT: Final[Any] = np.empty(0).__reduce__()[0]
_FROM_BUFFER: Final[Any] = np.empty(0).__reduce_ex__(5)[0]
_SCALAR: Final[Any] = np.int64(0).__reduce__()[0]

_ALLOWED: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    # how Python 3 writes bytes into old protocols; str.encode knows text encodings only
    ("_codecs", "encode"): str.encode,
    **{
        (f"numpy.{core}.{module}", name): value
        for core in ("core", "_core")
        for module, name, value in (
            ("multiarray", "_reconstruct", _RECONSTRUCT),
            ("multiarray", "scalar", _SCALAR),
            ("numeric", "_frombuffer", _FROM_BUFFER),
        )
    },
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, path: str | Path) -> None:
        super().__init__(file, encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise DataError(
                f"{self.path}: expected arrays, lists and numbers only; the pickle asks for "
                f"{module}.{name}, which is refused; get the file from its publisher"
            ) from None


def unpickle(file: BinaryIO, path: str | Path) -> dict[str, Any]:
    """The dictionary in a pickled batch, of Python 2 or 3, with its keys as text.

    Examples:
        >>> import io
        >>> batch = pickle.dumps({b"labels": [3, 1], "data": np.zeros((2, 1), np.uint8)})
        >>> unpickle(io.BytesIO(batch), "batch")["labels"]
        [3, 1]
        >>> unpickle(io.BytesIO(pickle.dumps(print)), "batch")
        Traceback (most recent call last):
        mintnet.data.dataset.DataError: batch: ... asks for builtins.print, which is refused; ...
    """
    try:
        value = _Unpickler(file, path).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(
            f"{path}: expected a pickled batch; it is truncated, damaged or something else "
            f"({reason(error)}); get it again"
        ) from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a pickled dictionary; got {type(value).__name__}")
    return {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in value.items()}
