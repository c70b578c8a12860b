"""What all tests share: a fixed seed, the fixtures folder, the trained model."""

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

if shutil.which("nvidia-smi") is None:  # before Triton is first imported, by whomever
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from mintnet.models import Flow
from registry import FIXTURES, trained_flow

settings.register_profile(
    "mintnet",
    deadline=None,
    derandomize=True,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("mintnet")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture(scope="session")
def trained() -> Flow:
    """The trained MNIST model, float32; leave it as it is."""
    return trained_flow()


@pytest.fixture(scope="session")
def trained_arrays() -> dict[str, np.ndarray]:
    return dict(np.load(FIXTURES / "trained_mnist.npz"))


@pytest.fixture
def raises_with() -> Callable[..., AbstractContextManager[None]]:
    """A context that expects an error of one type: one line, with all the given words in it."""

    @contextmanager
    def check(kind: type[Exception], *words: object):  # type: ignore[no-untyped-def]
        with pytest.raises(kind) as info:
            yield
        message = str(info.value)
        assert "\n" not in message, message
        for word in words:
            assert str(word) in message, f"{word!r} not in: {message}"

    return check
