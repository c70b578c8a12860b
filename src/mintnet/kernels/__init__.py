"""Optional fast paths. Each computes what a plain twin computes, and is tested against it."""

from mintnet.kernels.mint import compiled_mint_layer, mint_layer
from mintnet.kernels.mint_value import (
    compiled_normalized_mint_value,
    mint_value,
    normalized_mint_value,
    parts_of,
)

__all__ = [
    "compiled_mint_layer",
    "compiled_normalized_mint_value",
    "mint_layer",
    "mint_value",
    "normalized_mint_value",
    "parts_of",
]
