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
def test_reads_binary(tmp_path, write_cifar10, below):
    check(tmp_path, write_cifar10(tmp_path / below, binary=True))


@pytest.mark.parametrize("protocol", range(6))
def test_reads_python(tmp_path, write_cifar10, protocol):
    below = ("", "cifar10", "cifar10/cifar-10-batches-py")[protocol % 3]
    check(tmp_path, write_cifar10(tmp_path / below, binary=False, protocol=protocol))


def test_binary_comes_before_python(tmp_path, write_cifar10):
    write_cifar10(tmp_path / "cifar-10-batches-py", binary=False)
    check(tmp_path, write_cifar10(tmp_path / "cifar-10-batches-bin", binary=True))


def test_a_missing_batch_is_named(tmp_path, write_cifar10, raises_data_error):
    write_cifar10(tmp_path, binary=True)
    (tmp_path / "data_batch_3.bin").rename(tmp_path / "data_batch_three.bin")
    with raises_data_error("data_batch_3.bin not there", "mintnet data get cifar10"):
        load("cifar10", "train", tmp_path)
    assert len(load("cifar10", "test", tmp_path)) == 3


@pytest.mark.parametrize("size", [0, 1, 3072, 3 * 3073 - 1, 3 * 3073 + 1])
def test_binary_of_a_wrong_size(tmp_path, write_cifar10, raises_data_error, size):
    write_cifar10(tmp_path, binary=True)
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(bytes(size))
    words = ("records of 3073 bytes", f"{size} bytes") if size else ("empty",)
    with raises_data_error(path, *words):
        load("cifar10", "train", tmp_path)


def test_binary_with_impossible_labels(tmp_path, write_cifar10, raises_data_error):
    write_cifar10(tmp_path, binary=True)
    path = tmp_path / "test_batch.bin"
    path.write_bytes(bytes([10]) + path.read_bytes()[1:])
    with raises_data_error(path, "labels 0 to 9; got 10"):
        load("cifar10", "test", tmp_path)


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
    swap(tmp_path / f"test_batch{end}", tmp_path / f"data_batch_4{end}")
    with raises_data_error(f"expected test_batch{end}; its content is that of data_batch_4{end}"):
        load("cifar10", "test", tmp_path)
    with raises_data_error(f"expected data_batch_4{end}; its content is that of test_batch{end}"):
        load("cifar10", "train", tmp_path)


def test_python_truncated_or_of_the_other_version(tmp_path, write_cifar10, raises_data_error):
    write_cifar10(tmp_path, binary=False)
    path = tmp_path / "test_batch"
    whole = path.read_bytes()
    for length in (1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with raises_data_error(path, "truncated, damaged or something else"):
            load("cifar10", "test", tmp_path)
    for data, words in ((bytes(3073), "expected a pickled batch"), (b"", "empty")):
        path.write_bytes(data)
        with raises_data_error(path, words):
            load("cifar10", "test", tmp_path)


IMAGES = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([1, 2], "pickled dictionary; got list"),
        ({"data": IMAGES, "fine_labels": [1, 2]}, "no labels, only data, fine_labels"),
        ({"labels": [1, 2]}, "no data"),
        ({}, "no data and no labels, only nothing"),
        ({"data": IMAGES.tolist(), "labels": [1, 2]}, "got list"),
        ({"data": IMAGES.astype(np.int32), "labels": [1, 2]}, "got int32 of shape (2, 3072)"),
        ({"data": IMAGES[:, :3071], "labels": [1, 2]}, "got uint8 of shape (2, 3071)"),
        ({"data": IMAGES[:0], "labels": []}, "got uint8 of shape (0, 3072)"),
        ({"data": IMAGES[0], "labels": [1, 2]}, "got uint8 of shape (3072,)"),
        ({"data": IMAGES, "labels": [1, 2, 3]}, "expected 2 integer labels"),
        ({"data": IMAGES, "labels": [1.0, 2.0]}, "expected 2 integer labels"),
        ({"data": IMAGES, "labels": [[1], [2, 3]]}, "expected 2 integer labels"),
        ({"data": IMAGES, "labels": [0, 10]}, "labels 0 to 9; got 0 to 10"),
        ({"data": IMAGES, "labels": [-1, 9]}, "labels 0 to 9; got -1 to 9"),
    ],
)
def test_python_with_wrong_content(tmp_path, raises_data_error, batch, words):
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch))
    with raises_data_error(tmp_path / "test_batch", words):
        load("cifar10", "test", tmp_path)
