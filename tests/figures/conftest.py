"""A small model with weights away from zero."""

from collections.abc import Iterator

import pytest
import torch

from mintnet.models import Flow, MintNetConfig


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def flow() -> Flow:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        flow = Flow(MintNetConfig((1, 4, 4), pairs=(1, 1), filters=(3, 1)), 0.05, levels=17)
        with torch.no_grad():
            for parameter in flow.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return flow.eval().requires_grad_(False)


@pytest.fixture
def images(flow: Flow) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 17, (8, *flow.shape), dtype=torch.uint8, generator=generator)
