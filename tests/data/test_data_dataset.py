"""Sets of images, their registry, and the digits in the package."""

import subprocess
import sys
from importlib.resources import files

import pytest
import torch

from mintnet.data import NAMES, ImageData, load

BYTES = torch.zeros(2, 3, 4, 5, dtype=torch.uint8)


def test_shape_length_and_first():
    data = ImageData("some", BYTES, torch.tensor([1, 2]))
    assert (data.shape, len(data), data.levels, data.skipped) == ((3, 4, 5), 2, 256, 0)
    assert data.first(1).labels.tolist() == [1] and len(data.first(9)) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ImageData("some", BYTES.float()), "got torch.float32"),
        (lambda: ImageData("some", BYTES[0]), "(N, C, H, W); got torch.uint8 of shape (3, 4, 5)"),
        (lambda: ImageData("some", BYTES[:0]), "at least one image"),
        (lambda: ImageData("some", BYTES, torch.tensor([1])), "labels of shape (2,)"),
        (lambda: ImageData("some", BYTES, torch.tensor([1.0, 2.0])), "int64 labels"),
        (lambda: ImageData("some", BYTES, None, 1), "2 to 256 levels; got 1"),
        (lambda: ImageData("some", BYTES, None, 257), "2 to 256 levels; got 257"),
        (lambda: ImageData("some", BYTES + 17, None, 17), "pixels below 17 (levels); got 17"),
        (lambda: ImageData("some", BYTES).first(0), "at least 1; got 0"),
        (lambda: load("mnits", "train"), "'mnits'; expected one of digits, mnist, cifar10"),
        (lambda: load("mnist", "valid"), "'valid'; expected one of train, test"),
        (lambda: load("digits", "train", size=8), "for the data set 'folder'; digits"),
        (lambda: load("digits", "train", grey=True), "for the data set 'folder'; digits"),
    ],
)
def test_what_is_refused(make, words, raises_with):
    with raises_with(ValueError, words):
        make()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_a_folder_is_needed_and_what_to_put_there_is_told(name, tmp_path, raises_data_error):
    with raises_data_error(name, "got none"):
        load(name, "train")
    with raises_data_error(name, "does not exist"):
        load(name, "train", tmp_path / "absent")
    if name != "folder":
        for split in ("train", "test"):
            with raises_data_error(name, tmp_path, f"`mintnet data get {name}"):
                load(name, split, tmp_path)
    (tmp_path / "file").touch()
    with raises_data_error(name, "is a file"):
        load(name, "train", tmp_path / "file")


def test_digits_are_those_of_the_table():
    train, test = load("digits", "train"), load("digits", "test")
    assert (len(train), len(test)) == (1437, 360)
    images = torch.cat([train.images, test.images])
    labels = torch.cat([train.labels, test.labels])
    assert images.shape == (1797, 1, 8, 8)
    assert (int(images.min()), int(images.max())) == (0, 16)
    assert train.levels == test.levels == 17
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images[0, 0, :2].tolist() == [[0, 0, 5, 13, 9, 1, 0, 0], [0, 0, 13, 15, 10, 15, 5, 0]]
    assert images.sum() == 561718
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    credit = files("mintnet.data").joinpath("files", "digits-credit.txt").read_text()
    assert "CC BY 4.0" in credit and "Alpaydin" in credit


def test_without_the_packages_of_the_command_line(tmp_path):
    """The readers load neither Pillow nor pooch, and say what to install where they are needed."""
    code = f"""if True:
        import sys
        sys.modules.update(PIL=None, pooch=None)
        from mintnet.data import DataError, get, load
        assert len(load("digits", "test")) == 360
        for call, *arguments in ((load, "folder", "train"), (get, "mnist")):
            try:
                call(*arguments, {str(tmp_path)!r})
            except DataError as error:
                print(error)
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = run.stdout.strip().split("\n")
    assert len(lines) == 2 and "Pillow" in lines[0] and "pooch" in lines[1]
    assert all('pip install "mintnet[cli]"' in line for line in lines)
