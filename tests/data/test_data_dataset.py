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
    with pytest.raises(ValueError, match="at least 1; got 0"):
        data.first(0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((BYTES.float(),), "got torch.float32"),
        ((BYTES[0],), "(N, C, H, W); got torch.uint8 of shape (3, 4, 5)"),
        ((BYTES[:0],), "at least one image"),
        ((BYTES, torch.tensor([1])), "labels of shape (2,)"),
        ((BYTES, torch.tensor([1.0, 2.0])), "int64 labels"),
        ((BYTES, None, 1), "2 to 256 levels; got 1"),
        ((BYTES, None, 257), "2 to 256 levels; got 257"),
        ((BYTES + 17, None, 17), "pixels below 17 (levels); got 17"),
    ],
)
def test_what_is_refused(arguments, words):
    with pytest.raises(ValueError) as info:
        ImageData("some", *arguments)
    assert words in str(info.value)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_a_folder_is_needed(name, tmp_path, raises_data_error):
    with raises_data_error(name, "got none"):
        load(name, "train")
    with raises_data_error(name, "does not exist"):
        load(name, "train", tmp_path / "absent")
    (tmp_path / "file").touch()
    with raises_data_error(name, "is a file"):
        load(name, "train", tmp_path / "file")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "imagenet32"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_an_empty_folder_is_told_what_to_do(name, split, tmp_path, raises_data_error):
    with raises_data_error(name, tmp_path, f"`mintnet data get {name}"):
        load(name, split, tmp_path)


@pytest.mark.parametrize(
    ("name", "split", "options", "words"),
    [
        ("mnits", "train", {}, "'mnits'; expected one of digits, mnist, cifar10"),
        ("mnist", "valid", {}, "'valid'; expected one of train, test"),
        ("digits", "train", {"size": 8}, "for the data set 'folder'; digits"),
        ("digits", "train", {"grey": True}, "for the data set 'folder'; digits"),
    ],
)
def test_wrong_names_and_options(name, split, options, words):
    with pytest.raises(ValueError, match=words):
        load(name, split, **options)


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


def test_the_digits_are_credited():
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
