"""Optional fast paths. Each computes what a plain twin computes, and is tested against it."""

from mintnet.kernels.mint import compiled_mint_layer, mint_layer

__all__ = ["compiled_mint_layer", "mint_layer"]
