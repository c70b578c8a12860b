"""Two simple density models to compare with."""

import pytest
import torch

from mintnet.cli.app import benchmarks
from mintnet.data import ImageData

simple = benchmarks("baselines")


def noise(count, levels=8, size=2):
    images = torch.randint(0, levels, (count, 1, size, size), generator=torch.manual_seed(count))
    return ImageData("noise", images.byte(), levels=levels)


def test_bits_of_uniform_pixels():
    assert simple.histogram_bits_per_dim(noise(20000), noise(500)) == pytest.approx(3, abs=1e-2)
    assert 3 < simple.gaussian_bits_per_dim(noise(2000), noise(500)) < 3.3
    with pytest.raises(ValueError, match="of one kind"):
        simple.histogram_bits_per_dim(noise(20), noise(20, levels=9))
