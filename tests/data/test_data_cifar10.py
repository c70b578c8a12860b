"""CIFAR-10 in both published versions."""

import pickle

import numpy as np
import pytest

from mintnet.data import load
from mintnet.data.published import CIFAR10_BINARY, CIFAR10_PYTHON, md5

pytestmark = pytest.mark.filterwarnings("error")
TRAIN = [f"data_batch_{k}" for k in range(1, 6)]


def check(folder, written):
    for split, names in {"train": TRAIN, "test": ["test_batch"]}.items():
        data = load("cifar10", split, folder)
        assert (data.name, data.levels, data.shape) == ("cifar10", 256, (3, 32, 32))
        assert np.array_equal(data.images, np.concatenate([written[n][0] for n in names]))
        assert np.array_equal(data.labels, np.concatenate([written[n][1] for n in names]))
        data.images[0] = 0  # memory of its own


@pytest.mark.parametrize("below", ["", "cifar10", "cifar-10-batches-bin"])
def test_reads_binary_before_python(tmp_path, write_cifar10, below):
    write_cifar10(tmp_path / "cifar-10-batches-py", binary=False)
    check(tmp_path, write_cifar10(tmp_path / below, binary=True))


@pytest.mark.parametrize("protocol", range(6))
def test_reads_python(tmp_path, write_cifar10, protocol):
    below = ("", "cifar10", "cifar10/cifar-10-batches-py")[protocol % 3]
    check(tmp_path, write_cifar10(tmp_path / below, binary=False, protocol=protocol))


def test_a_missing_batch_is_named(tmp_path, write_cifar10, raises_data_error):
    write_cifar10(tmp_path, binary=True)
    (tmp_path / "data_batch_3.bin").rename(tmp_path / "data_batch_three.bin")
    with raises_data_error("data_batch_3.bin not there", "mintnet data get cifar10"):
        load("cifar10", "train", tmp_path)
    assert len(load("cifar10", "test", tmp_path)) == 3


@pytest.mark.parametrize("binary", [True, False])
def test_published_batches_under_each_others_names(
    tmp_path, write_cifar10, raises_data_error, swap, monkeypatch, binary
):
    write_cifar10(tmp_path, binary=binary)
    known = CIFAR10_BINARY if binary else CIFAR10_PYTHON
    for name in known:
        monkeypatch.setitem(known, name, md5((tmp_path / name).read_bytes()))
    assert len(load("cifar10", "train", tmp_path)) == 15
    end = ".bin" if binary else ""
    one, two = f"test_batch{end}", f"data_batch_4{end}"
    swap(tmp_path / one, tmp_path / two)
    for split, name, other in (("test", one, two), ("train", two, one)):
        with raises_data_error(f"expected {name}; its content is that of {other}"):
            load("cifar10", split, tmp_path)


IMAGES = np.zeros((2, 3072), np.uint8)
WHOLE = pickle.dumps({"data": IMAGES, "labels": [1, 2]})
DAMAGED = "truncated, damaged or something else"
FILES = [
    ("test_batch.bin", b"", "empty"),
    *(
        ("test_batch.bin", bytes(n), f"records of 3073 bytes; got {n} bytes")
        for n in (1, 3072, 3 * 3073 - 1, 3 * 3073 + 1)
    ),
    ("test_batch.bin", bytes([10]) + bytes(3072), "labels 0 to 9; got 10"),
    ("test_batch", b"", "empty"),
    ("test_batch", bytes(3073), "expected a pickled batch"),
    *(("test_batch", WHOLE[:n], DAMAGED) for n in (1, 100, len(WHOLE) // 2, len(WHOLE) - 1)),
]
BATCHES = [
    ([1, 2], "pickled dictionary; got list"),
    ({"data": IMAGES, "fine_labels": [1, 2]}, "no labels, only data, fine_labels"),
    ({"labels": [1, 2]}, "no data"),
    ({}, "no data and no labels, only nothing"),
    ({"data": IMAGES.tolist(), "labels": [1, 2]}, "got list"),
    ({"data": IMAGES.astype(np.int32), "labels": [1, 2]}, "got int32 of shape (2, 3072)"),
    ({"data": IMAGES[:, :3071], "labels": [1, 2]}, "got uint8 of shape (2, 3071)"),
    ({"data": IMAGES[:0], "labels": []}, "got uint8 of shape (0, 3072)"),
    ({"data": IMAGES[0], "labels": [1, 2]}, "got uint8 of shape (3072,)"),
    *(
        ({"data": IMAGES, "labels": labels}, "expected 2 integer labels")
        for labels in ([1, 2, 3], [1.0, 2.0], [[1], [2, 3]])
    ),
    ({"data": IMAGES, "labels": [0, 10]}, "labels 0 to 9; got 0 to 10"),
    ({"data": IMAGES, "labels": [-1, 9]}, "labels 0 to 9; got -1 to 9"),
]
FILES += [("test_batch", pickle.dumps(batch), words) for batch, words in BATCHES]


@pytest.mark.parametrize(("name", "content", "words"), FILES)
def test_damaged_files_and_wrong_content(tmp_path, raises_data_error, name, content, words):
    (tmp_path / name).write_bytes(content)
    with raises_data_error(tmp_path / name, words):
        load("cifar10", "test", tmp_path)
