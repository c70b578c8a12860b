"""Optional fast paths. Each computes what a plain twin computes, and is tested against it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

from mintnet.kernels.mint import compiled, mint_layer, prepared
from mintnet.kernels.mint_value import mint_value, normalized_mint_value, parts_of

HAS_TRITON = find_spec("triton") is not None
_switched_off: ContextVar[bool] = ContextVar("switched_off", default=False)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, no hand-written kernel is used: plain tensor operations serve in its place.

    Examples:
        >>> with plain_kernels():
        ...     hand_written_allowed()
        False
    """
    token = _switched_off.set(True)
    try:
        yield
    finally:
        _switched_off.reset(token)


def hand_written_allowed() -> bool:
    """Whether a hand-written kernel may be used here."""
    return HAS_TRITON and not _switched_off.get()


__all__ = [
    "HAS_TRITON",
    "compiled",
    "hand_written_allowed",
    "mint_layer",
    "mint_value",
    "normalized_mint_value",
    "parts_of",
    "plain_kernels",
    "prepared",
]
