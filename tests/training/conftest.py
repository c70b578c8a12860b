import pytest

from mintnet.training import train


@pytest.fixture
def tiny():
    """`train` on digits with a network that takes milliseconds a step."""

    def call(run, preset="digits", **given):
        options = {
            "batch_size": 16,
            "pairs": (1, 1),
            "filters": (3, 1),
            "max_steps": 10,
            "epochs": 100,
            "sample_every": 0,
            "checkpoint_every": 5,
            **given,
        }
        return train(preset, run, **options)

    return call
