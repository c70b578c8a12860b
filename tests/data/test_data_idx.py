"""MNIST's format: every spelling, and every damage named."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mintnet.data import DataError, load
from mintnet.data.published import MNIST, md5
from mintnet.data.readers import parse_idx
from registry import idx_bytes

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(
    ("packed", "dotted", "below"),
    [(True, False, ""), (False, True, "mnist"), (True, True, "MNIST/raw"), (False, False, "raw")],
)
def test_reads_every_spelling(tmp_path, write_mnist, packed, dotted, below):
    written = write_mnist(tmp_path / below, packed=packed, dotted=dotted)
    for split, (images, labels) in written.items():
        data = load("mnist", split, tmp_path)
        assert (data.name, data.levels, data.shape) == ("mnist", 256, (1, 28, 28))
        assert np.array_equal(data.images[:, 0], images)
        assert np.array_equal(data.labels, labels)


@given(arrays(np.uint8, array_shapes(min_dims=3, max_dims=3, max_side=5)), st.integers(1, 40))
def test_images_survive_and_truncations_are_refused(array, lost):
    data = idx_bytes(array)
    assert np.array_equal(parse_idx(data, "images"), array)
    with pytest.raises(DataError, match="expected"):
        parse_idx(data[: max(0, len(data) - lost)], "images")


@given(st.binary(max_size=40), st.sampled_from(["images", "labels"]))
def test_any_other_bytes_are_refused_or_whole(data, kind):
    try:
        array = parse_idx(data, kind)
    except DataError:
        return
    assert idx_bytes(array) == data


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"])
def test_truncated_empty_and_foreign_files(tmp_path, write_mnist, raises_data_error, name):
    write_mnist(tmp_path)
    path = tmp_path / name
    whole = path.read_bytes()
    plain, middle = gzip.decompress(whole), len(whole) // 2
    path.write_bytes(plain)
    assert len(load("mnist", "train", tmp_path)) == 7  # gzip is told by content, not by name
    flipped = whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]
    cases = [(whole[:n], "truncated, damaged") for n in (2, 9, middle, len(whole) - 1)]
    cases += [
        (flipped, "get it again"),
        (gzip.compress(plain[:-1]), "get the file again"),
        (gzip.compress(plain + b"\0"), "bytes for"),
        (b"", "empty"),
        (gzip.compress(b""), "empty"),
        (b"<!DOCTYPE html><title>404</title>", "<!DOCTYP"),
    ]
    for data, words in cases:
        path.write_bytes(data)
        with raises_data_error(path, words):
            load("mnist", "train", tmp_path)


def test_files_in_each_others_places(tmp_path, write_mnist, raises_data_error, swap, monkeypatch):
    write_mnist(tmp_path, packed=False)
    images, labels = (tmp_path / f"train-{n}" for n in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    swap(images, labels)
    with raises_data_error(images, "images (magic 2051); got labels (magic 2049)", "swapped"):
        load("mnist", "train", tmp_path)
    swap(images, labels)
    for name in MNIST:
        monkeypatch.setitem(MNIST, name, md5((tmp_path / name).read_bytes()))
    assert len(load("mnist", "train", tmp_path)) == 7
    for path in (images, labels):
        swap(path, tmp_path / path.name.replace("train", "t10k"))
    for split, own, other in (("train", "train", "t10k"), ("test", "t10k", "train")):
        with raises_data_error(f"expected {own}-images", f"that of {other}-images"):
            load("mnist", split, tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (idx_bytes(np.zeros((4, 28, 27), np.uint8)), "28x28 pixels; got 28x27"),
        (idx_bytes(np.zeros((0, 28, 28), np.uint8)), "0 images and 4 labels"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12 + bytes(100), "got 116"),  # a header beyond belief
    ],
)
def test_wrong_shapes_and_counts(tmp_path, write_mnist, raises_data_error, content, words):
    write_mnist(tmp_path, packed=False)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(content)
    with raises_data_error(words):
        load("mnist", "test", tmp_path)


def test_labels_that_do_not_fit_their_images(tmp_path, write_mnist, raises_data_error):
    labels = {"train": np.full(7, 9, np.uint8), "test": np.full(4, 10, np.uint8)}
    write_mnist(tmp_path, packed=False, labels=labels)
    assert load("mnist", "train", tmp_path).labels.tolist() == [9] * 7
    with raises_data_error("expected labels 0 to 9; got 10"):
        load("mnist", "test", tmp_path)
    write_mnist(tmp_path, packed=False, counts=(7, 0))
    with raises_data_error("at least one", "0 images and 0 labels"):
        load("mnist", "test", tmp_path)
    write_mnist(tmp_path, packed=False)
    (tmp_path / "t10k-labels-idx1-ubyte").replace(tmp_path / "train-labels-idx1-ubyte")
    with raises_data_error("7 images and 4 labels"):
        load("mnist", "train", tmp_path)
    with raises_data_error("t10k-labels-idx1-ubyte not there"):
        load("mnist", "test", tmp_path)
