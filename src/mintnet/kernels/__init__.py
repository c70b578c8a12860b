"""Optional fast paths. Each computes what a plain twin computes, and is tested against it."""

from mintnet.kernels.training import fast_log_density, fast_transform

__all__ = ["fast_log_density", "fast_transform"]
