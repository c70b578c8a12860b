"""Measurements of the library by itself, as commands that anyone can repeat."""

from mintnet.bench.growth import bench_growth
from mintnet.bench.invert import bench_invert

__all__ = ["bench_growth", "bench_invert"]
