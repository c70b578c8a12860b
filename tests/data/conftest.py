"""Writers of small files in the published formats."""

import gzip
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mintnet.data import DataError
from registry import idx_bytes


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def raises_data_error(raises_with) -> Callable[..., AbstractContextManager[None]]:
    return partial(raises_with, DataError)


@pytest.fixture
def swap() -> Callable[[Path, Path], None]:
    """Exchange the contents of two files."""

    def exchange(one: Path, two: Path) -> None:
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)

    return exchange


@pytest.fixture
def write_mnist(rng):
    """Write the four files; return their arrays by split."""

    def write(folder: Path, *, packed=True, dotted=False, counts=(7, 4), labels=None):
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {}
        for split, part, n in zip(("train", "test"), ("train", "t10k"), counts, strict=True):
            images = rng.integers(0, 256, (n, 28, 28), np.uint8)
            classes = rng.integers(0, 10, n, np.uint8) if labels is None else labels[split]
            for kind, array in (("images-idx3", images), ("labels-idx1", classes)):
                name = f"{part}-{kind}-ubyte"
                name = name.replace("-idx", ".idx") if dotted else name
                data = idx_bytes(array)
                name, data = (f"{name}.gz", gzip.compress(data)) if packed else (name, data)
                (folder / name).write_bytes(data)
            arrays[split] = images, classes
        return arrays

    return write


CIFAR10 = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]


@pytest.fixture
def write_cifar10(rng):
    """Write the six batches, binary or pickled as Python 2 did; return (images, labels) by name."""

    def write(folder: Path, *, binary: bool, count=3, protocol=2):
        folder.mkdir(parents=True, exist_ok=True)
        batches = {}
        for name in CIFAR10:
            images = rng.integers(0, 256, (count, 3072), np.uint8)
            labels = rng.integers(0, 10, count, np.uint8)
            if binary:
                records = np.concatenate([labels[:, None], images], axis=1)
                (folder / f"{name}.bin").write_bytes(records.tobytes())
            else:
                batch = {b"data": images, b"labels": labels.tolist(), b"batch_label": b"one of 6"}
                (folder / name).write_bytes(pickle.dumps(batch, protocol))
            batches[name] = images.reshape(-1, 3, 32, 32), labels
        return batches

    return write
