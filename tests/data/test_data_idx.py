import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mintnet.data import DataError, load
from mintnet.data.idx import parse_idx
from mintnet.data.published import MNIST, md5

pytestmark = pytest.mark.filterwarnings("error")


def to_idx(array: np.ndarray) -> bytes:
    shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dotted", [True, False])
@pytest.mark.parametrize("below", ["", "mnist", "MNIST/raw"])
def test_reads_every_spelling(tmp_path, write_mnist, packed, dotted, below):
    written = write_mnist(tmp_path / below, packed=packed, dotted=dotted)
    for split, (images, labels) in written.items():
        data = load("mnist", split, tmp_path)
        assert (data.name, data.levels, data.shape) == ("mnist", 256, (1, 28, 28))
        assert np.array_equal(data.images[:, 0], images)
        assert np.array_equal(data.labels, labels)


def test_gzip_is_told_by_content_not_by_name(tmp_path, write_mnist):
    images, _ = write_mnist(tmp_path)["train"]
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.decompress(path.read_bytes()))
    assert np.array_equal(load("mnist", "train", tmp_path).images[:, 0], images)


@given(arrays(np.uint8, array_shapes(min_dims=3, max_dims=3, max_side=5)))
def test_images_survive(array):
    assert np.array_equal(parse_idx(to_idx(array), "images"), array)


@given(st.binary(max_size=40), st.sampled_from(["images", "labels"]))
def test_any_other_bytes_are_refused_or_whole(data, kind):
    try:
        array = parse_idx(data, kind)
    except DataError:
        return
    assert to_idx(array) == data


@given(st.integers(0, 45))
def test_every_truncation_is_refused(length):
    with pytest.raises(DataError, match="expected"):
        parse_idx(to_idx(np.zeros((2, 3, 5), np.uint8))[:length], "images")


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"])
def test_truncated_empty_and_foreign_files(tmp_path, write_mnist, raises_data_error, name):
    write_mnist(tmp_path)
    path = tmp_path / name
    whole = path.read_bytes()
    for length in (2, 9, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with raises_data_error(path, "truncated or damaged"):
            load("mnist", "train", tmp_path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :])
    with raises_data_error(path, "get it again"):
        load("mnist", "train", tmp_path)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    with raises_data_error(path, "bytes for", "get the file again"):
        load("mnist", "train", tmp_path)
    path.write_bytes(gzip.compress(gzip.decompress(whole) + b"\0"))
    with raises_data_error(path, "bytes for"):
        load("mnist", "train", tmp_path)
    path.write_bytes(b"")
    with raises_data_error(path, "empty"):
        load("mnist", "train", tmp_path)
    path.write_bytes(gzip.compress(b""))
    with raises_data_error(path, "empty"):
        load("mnist", "train", tmp_path)
    path.write_bytes(b"<!DOCTYPE html><title>404</title>")
    with raises_data_error(path, "magic", "<!DOCTYP"):
        load("mnist", "train", tmp_path)


def test_swapped_images_and_labels(tmp_path, write_mnist, raises_data_error):
    write_mnist(tmp_path, packed=False)
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    images.rename(tmp_path / "aside")
    labels.rename(images)
    (tmp_path / "aside").rename(labels)
    with raises_data_error(
        images, "expected idx images (magic 2051); got labels (magic 2049)", "swapped"
    ):
        load("mnist", "train", tmp_path)


def test_images_of_one_split_with_labels_of_the_other(tmp_path, write_mnist, raises_data_error):
    write_mnist(tmp_path, packed=False)
    (tmp_path / "t10k-labels-idx1-ubyte").replace(tmp_path / "train-labels-idx1-ubyte")
    with raises_data_error("7 images and 4 labels"):
        load("mnist", "train", tmp_path)
    with raises_data_error("t10k-labels-idx1-ubyte[.gz]", "not there"):
        load("mnist", "test", tmp_path)


def test_published_files_under_each_others_names(
    tmp_path, write_mnist, raises_data_error, monkeypatch
):
    write_mnist(tmp_path, packed=False)
    for name in MNIST:
        monkeypatch.setitem(MNIST, name, md5((tmp_path / name).read_bytes()))
    assert len(load("mnist", "train", tmp_path)) == 7
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        (tmp_path / f"train-{kind}").rename(tmp_path / "aside")
        (tmp_path / f"t10k-{kind}").rename(tmp_path / f"train-{kind}")
        (tmp_path / "aside").rename(tmp_path / f"t10k-{kind}")
    with raises_data_error("expected train-images", "that of t10k-images"):
        load("mnist", "train", tmp_path)
    with raises_data_error("expected t10k-images", "that of train-images"):
        load("mnist", "test", tmp_path)


def test_wrong_shapes_labels_and_counts(tmp_path, write_mnist, raises_data_error):
    write_mnist(tmp_path, packed=False)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(to_idx(np.zeros((4, 28, 27), np.uint8)))
    with raises_data_error(path, "28x28", "28x27"):
        load("mnist", "test", tmp_path)
    path.write_bytes(to_idx(np.zeros((0, 28, 28), np.uint8)))
    with raises_data_error("0 images and 4 labels"):
        load("mnist", "test", tmp_path)
    labels = {"train": np.full(7, 9, np.uint8), "test": np.full(4, 10, np.uint8)}
    write_mnist(tmp_path, packed=False, labels=labels)
    assert load("mnist", "train", tmp_path).labels.tolist() == [9] * 7
    with raises_data_error("expected labels 0 to 9; got 10"):
        load("mnist", "test", tmp_path)
    write_mnist(tmp_path, packed=False, counts=(7, 0))
    with raises_data_error("at least one", "0 images and 0 labels"):
        load("mnist", "test", tmp_path)


def test_a_header_that_claims_the_moon_is_not_believed(tmp_path, write_mnist, raises_data_error):
    write_mnist(tmp_path, packed=False)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12 + bytes(100))
    with raises_data_error(path, "got 116"):
        load("mnist", "test", tmp_path)
