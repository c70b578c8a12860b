"""What all tests share: a fixed seed, contexts that check, writers of files."""

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch.distributions import Distribution
from torch.utils._python_dispatch import TorchDispatchMode

torch.set_num_threads(1)  # small tensors only lose by threads, and processes share the cores

settings.register_profile(
    "mintnet",
    deadline=None,
    derandomize=True,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("mintnet")

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # they hold no examples


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def raises_with(tmp_path: Path) -> Callable[..., AbstractContextManager[None]]:
    """A context that expects an error of one type: one line, with all the given words in it.

    Words are not looked for in ``tmp_path``, which pytest names after the test.
    """

    @contextmanager
    def check(kind: type[Exception], *words: object):  # type: ignore[no-untyped-def]
        with pytest.raises(kind) as info:
            yield
        message, *given = (str(s).replace(str(tmp_path), "TMP") for s in (info.value, *words))
        assert "\n" not in message, message
        for word in given:
            assert word in message, f"{word!r} not in: {message}"

    return check


class Capturable(TorchDispatchMode):
    """Refuses what no CUDA graph can capture: data from the host, and waiting for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.lifted: list[torch.Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name, result = func._schema.name, func(*args, **(kwargs or {}))
        if name == "aten::lift_fresh":
            assert result.dim() == 0, f"a tensor of shape {tuple(result.shape)} made on the host"
            self.lifted.append(result)
        if name == "aten::copy_":
            assert not any(args[1] is tensor for tensor in self.lifted), "copied from the host"
        assert name not in ("aten::_local_scalar_dense", "aten::nonzero"), f"{name} waits"
        return result


@pytest.fixture
def capturable() -> Callable[[], Capturable]:
    """A context in which an operation that no CUDA graph can capture is an error."""
    return Capturable


@pytest.fixture
def zuko():
    """zuko changes torch's Distribution when it is imported: for these tests alone."""
    names = ("_validate_args", "arg_constraints")
    kept = [Distribution.__dict__[name] for name in names]
    module = pytest.importorskip("zuko")
    for name, value in zip(names, (False, {}), strict=True):
        setattr(Distribution, name, value)
    yield module
    for name, value in zip(names, kept, strict=True):
        setattr(Distribution, name, value)


@pytest.fixture
def write_box():
    """Write the anti-aliased ImageNet 32x32; return (images, labels) by name."""

    rng = np.random.default_rng(0)

    def write(folder: Path, *, npz: bool, count=2):
        folder.mkdir(parents=True, exist_ok=True)
        batches = {}
        for name in [*(f"train_data_batch_{k}" for k in range(1, 11)), "val_data"]:
            images = rng.integers(0, 256, (count, 3072), np.uint8)
            labels = rng.integers(1, 1001, count)
            batch = {"data": images, "labels": labels, "mean": images.mean(0)}
            if npz:
                np.savez(folder / f"{name}.npz", **batch)
            else:
                batch["labels"] = labels.tolist()
                (folder / name).write_bytes(pickle.dumps(batch, 2))
            batches[name] = images.reshape(-1, 3, 32, 32), labels
        return batches

    return write
