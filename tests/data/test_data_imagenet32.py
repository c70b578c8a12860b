"""ImageNet 32×32 in both published versions."""

import tracemalloc

import numpy as np
import pytest
import torch

from mintnet.data import load, readers
from mintnet.data.readers import map_npy

pytestmark = pytest.mark.filterwarnings("error")
TRAIN = [f"train_data_batch_{k}" for k in range(1, 11)]


@pytest.mark.parametrize("layout", ["channels last", "channels first", "flat", "fortran"])
def test_reads_the_older_version(tmp_path, rng, layout):
    folder = tmp_path / ("imagenet32" if layout == "flat" else "")
    folder.mkdir(exist_ok=True)
    for split, name, n in (("train", "train_32x32", 5), ("test", "valid_32x32", 3)):
        images = rng.integers(0, 256, (n, 3, 32, 32), np.uint8)
        stored = {
            "channels last": images.transpose(0, 2, 3, 1).copy(),
            "channels first": images,
            "flat": images.reshape(n, 3072),
            "fortran": np.asfortranarray(images),
        }[layout]
        path = folder / f"{name}.npy"
        np.save(path, stored)
        before = path.read_bytes()
        data = load("imagenet32", split, tmp_path)
        assert (data.name, data.levels, data.shape) == ("imagenet32-old", 256, (3, 32, 32))
        assert data.labels is None and np.array_equal(data.images, images)
        data.images[0] = 0
        assert path.read_bytes() == before


def test_the_older_version_is_mapped_not_read(tmp_path):
    n = 100_000
    path = tmp_path / "train_32x32.npy"
    header = np.lib.format.header_data_from_array_1_0(np.empty((0, 32, 32, 3), np.uint8))
    header["shape"] = (n, 32, 32, 3)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + n * 3072)  # sparse: no space on the disk
    tracemalloc.start()
    try:
        data = load("imagenet32", "train", tmp_path)
        assert data.images[torch.tensor([0, n - 1])].sum() == 0
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert len(data) == n
    assert isinstance(map_npy(path), np.memmap)


@pytest.mark.parametrize(("npz", "below"), [(True, ""), (False, "imagenet32")])
def test_reads_the_anti_aliased_version(tmp_path, write_box, npz, below):
    written = write_box(tmp_path / below, npz=npz)
    for split, names in {"train": TRAIN, "test": ["val_data"]}.items():
        data = load("imagenet32", split, tmp_path)
        assert (data.name, data.levels, data.shape) == ("imagenet32-box", 256, (3, 32, 32))
        assert np.array_equal(data.images, np.concatenate([written[n][0] for n in names]))
        assert np.array_equal(data.labels + 1, np.concatenate([written[n][1] for n in names]))
        data.images[0] = 0


def test_the_versions_are_never_mixed(tmp_path, write_box, raises_data_error):
    write_box(tmp_path / "imagenet32", npz=True)
    np.save(tmp_path / "valid_32x32.npy", np.zeros((2, 32, 32, 3), np.uint8))
    for split in ("train", "test"):
        with raises_data_error("both", "valid_32x32.npy", "train_data_batch_1.npz", "of its own"):
            load("imagenet32", split, tmp_path)
    assert load("imagenet32", "test", tmp_path / "imagenet32").name == "imagenet32-box"


def test_a_missing_file_is_named(tmp_path, write_box, raises_data_error):
    write_box(tmp_path / "box", npz=True)
    (tmp_path / "box" / "train_data_batch_7.npz").unlink()
    with raises_data_error("train_data_batch_7 not there"):
        load("imagenet32", "train", tmp_path / "box")
    assert len(load("imagenet32", "test", tmp_path / "box")) == 2
    np.save(tmp_path / "train_32x32.npy", np.zeros((2, 32, 32, 3), np.uint8))
    with raises_data_error("valid_32x32.npy not there"):
        load("imagenet32", "test", tmp_path)


def test_npy_with_wrong_content(tmp_path, raises_data_error, monkeypatch):
    path = tmp_path / "valid_32x32.npy"
    for array, words in (
        (np.zeros((2, 32, 32, 3), np.float32), "got float32 of shape (2, 32, 32, 3)"),
        (np.zeros((2, 64, 64, 3), np.uint8), "got uint8 of shape (2, 64, 64, 3)"),
        (np.zeros((2, 32, 3, 32), np.uint8), "got uint8 of shape (2, 32, 3, 32)"),
        (np.zeros((0, 32, 32, 3), np.uint8), "shape (0, 32, 32, 3)"),
        (np.zeros((), np.uint8), "got uint8 of shape ()"),
        (np.array([{}]), "truncated, damaged or something else"),
    ):
        np.save(path, array, allow_pickle=True)
        with raises_data_error(path, words):
            load("imagenet32", "test", tmp_path)
    monkeypatch.setattr(readers, "COUNTS", {"train": 5, "test": 3})
    for name, count in (("train_32x32", 3), ("valid_32x32", 5)):
        np.save(tmp_path / f"{name}.npy", np.zeros((count, 32, 32, 3), np.uint8))
    for split in ("train", "test"):
        with raises_data_error(f"expected the {split} images", "swapped"):
            load("imagenet32", split, tmp_path)


def test_truncated_and_foreign_files(tmp_path, write_box, raises_data_error):
    np.save(tmp_path / "valid_32x32.npy", np.zeros((2, 32, 32, 3), np.uint8))
    write_box(tmp_path / "a", npz=True)
    write_box(tmp_path / "b", npz=False)
    for name in ("valid_32x32.npy", "a/val_data.npz", "b/val_data"):
        path = tmp_path / name
        whole = path.read_bytes()
        damaged = [whole[:n] for n in (0, 1, 60, 100, 5000, len(whole) // 2, len(whole) - 1)]
        for data in [*damaged, b"<!DOCTYPE html>"]:
            path.write_bytes(data)
            with raises_data_error(path, "get it again"):
                load("imagenet32", "test", path.parent)
        path.unlink()


def test_npz_with_wrong_content(tmp_path, raises_data_error):
    path, images = tmp_path / "val_data.npz", np.zeros((2, 3072), np.uint8)
    for table, words in (
        ({"data": images}, "no labels"),
        ({"data": images, "labels": [0, 1]}, "labels 1 to 1000; got 0 to 1"),
        ({"data": images, "labels": [1, 1001]}, "labels 1 to 1000; got 1 to 1001"),
        ({"data": images, "labels": np.array([{}, {}])}, "truncated, damaged or something else"),
        ({"data": images[:, :12], "labels": [1, 2]}, "shape (2, 12)"),
    ):
        np.savez(path, **table)
        with raises_data_error(path, words):
            load("imagenet32", "test", tmp_path)
    with path.open("wb") as file:
        np.save(file, images)
    with raises_data_error(path, "expected an .npz file"):
        load("imagenet32", "test", tmp_path)
    np.savez(path, data=images, labels=[1, 2])
    whole = path.read_bytes()
    path.write_bytes(whole[:3000] + b"\1" * 100 + whole[3100:])
    with raises_data_error(path, "CRC"):
        load("imagenet32", "test", tmp_path)
