import pytest
import torch

from mintnet.training import Cadence, train

QUIET = Cadence(samples=0, checkpoint=5)


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small only lose by threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny():
    """`train` on digits with a network that takes milliseconds a step."""

    def call(run, cadence=QUIET, **given):
        options = {
            "batch_size": 16,
            "pairs": (1, 1),
            "filters": (3, 1),
            "max_steps": 10,
            "epochs": 100,
            **given,
        }
        return train("digits", run, cadence=cadence, **options)

    return call
