"""CIFAR-10 in both published versions; what pickles may hold, and that they call nothing."""

import _codecs
import builtins
import collections
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintnet.data import DataError, load
from mintnet.data.published import CIFAR10_BINARY, CIFAR10_PYTHON, md5
from mintnet.data.readers import read_table

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


def unpickle(data):
    return read_table(Path("batch"), data)


class Call:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("touch mark",), ".system"),
        (subprocess.check_call, (["touch", "mark"],), ".check_call"),
        (builtins.eval, ("open('mark', 'w')",), "eval"),
        (builtins.open, ("mark", "w"), "open"),
        (builtins.getattr, (1, "real"), "getattr"),
        (np.save, ("mark", 1), "numpy.save"),
    ],
)
def test_calls_are_refused_and_not_made(
    tmp_path, raises_data_error, monkeypatch, function, arguments, name, protocol
):
    monkeypatch.chdir(tmp_path)
    batch = {"data": Call(function, *arguments), "labels": [1]}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol))
    with raises_data_error(tmp_path / "test_batch", name, "refused"):
        load("cifar10", "test", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test_batch"]


@pytest.mark.parametrize(
    "value",
    [collections.OrderedDict(), {1, 2}, object(), 3j, range(2), Call(_codecs.encode, "x", "rot13")],
)
def test_other_types_are_refused(value):
    with pytest.raises(DataError, match=r"refused|not a text encoding"):
        unpickle(pickle.dumps({"data": value}, 2))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("core", [b"core", b"_core"])
def test_arrays_of_old_and_new_numpy(protocol, core):
    batch = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [np.int64(4), 2]}
    data = pickle.dumps(batch, protocol)
    if protocol < 4:  # later protocols give the length of a name
        data = data.replace(b"numpy._core", b"numpy." + core)
    read = unpickle(data)
    assert np.array_equal(read["data"], batch[b"data"]) and read["labels"] == [4, 2]


def test_a_batch_as_python_2_wrote_it():
    read = unpickle(
        b"(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n"
        b"(I0\ntp4\nS'b'\np5\ntp6\nRp7\n(I1\n(I1\nI3\ntp8\ncnumpy\ndtype\np9\n(S'u1'\np10\nI0\n"
        b"I1\ntp11\nRp12\n(I3\nS'|'\np13\nNNNI-1\nI-1\nI0\ntp14\nbI00\nS'\\x07\\xff\\x00'\np15\n"
        b"tp16\nbsS'labels'\np17\n(lp18\nI6\nas."
    )
    assert (read["data"].tolist(), read["labels"]) == ([[7, 255, 0]], [6])


BATCH = pickle.dumps({"data": np.arange(24, dtype=np.uint8).reshape(2, 12), "labels": [1, 2]}, 2)


@given(st.binary(max_size=60), st.integers(0, len(BATCH) - 1), st.integers(0, 255))
def test_noise_and_wrong_bytes_are_refused_or_a_dictionary(noise, place, byte):
    for data in (noise, BATCH[:place] + bytes([byte]) + BATCH[place + 1 :]):
        try:
            assert isinstance(unpickle(data), dict)
        except DataError as error:
            assert "\n" not in str(error)
