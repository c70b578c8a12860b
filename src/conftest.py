"""What the examples in docstrings share: a fixed seed, as the tests have."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
