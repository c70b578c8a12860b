"""What the examples in docstrings share: a fixed seed, as the tests have."""

import mintnet.waiting  # noqa: F401  before torch is loaded, as in the command line
import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
