"""Optional fast paths. Each computes what a plain twin computes, and is tested against it."""

from importlib.util import find_spec

from mintnet.kernels.mint import compiled, mint_layer, prepared
from mintnet.kernels.mint_value import mint_value, normalized_mint_value, parts_of

HAS_TRITON = find_spec("triton") is not None

__all__ = [
    "HAS_TRITON",
    "compiled",
    "mint_layer",
    "mint_value",
    "normalized_mint_value",
    "parts_of",
    "prepared",
]
