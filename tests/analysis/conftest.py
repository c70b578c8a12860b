"""A small density model with weights away from zero, and images for it."""

import pytest
import torch

from mintnet.models import Flow
from registry import tiny_flow


@pytest.fixture(scope="session")
def flow() -> Flow:
    return tiny_flow(side=4, seed=5).requires_grad_(False)


@pytest.fixture(scope="session")
def images(flow: Flow) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 17, (8, *flow.shape), dtype=torch.uint8, generator=generator)
