"""Measurements of the library by itself, as commands that anyone can repeat."""

from mintnet.bench.growth import bench_growth
from mintnet.bench.invert import bench_invert
from mintnet.bench.properties import bench_properties
from mintnet.bench.sample import bench_sample
from mintnet.bench.train import bench_train

__all__ = ["bench_growth", "bench_invert", "bench_properties", "bench_sample", "bench_train"]
