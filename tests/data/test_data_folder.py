"""Folders of pictures: the split, what is skipped, what is refused, and how pictures are read."""

import io
import logging

import numpy as np
import pytest
from PIL import Image

from mintnet.data import load
from mintnet.data.folder import read_picture

pytestmark = pytest.mark.filterwarnings("error")


def fill(folder, count=10, size=(40, 40)):
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        Image.new("RGB", size, (k, 2 * k, 100)).save(folder / f"{k:03}.png")


def test_every_tenth_is_a_test_image(tmp_path):
    fill(tmp_path, 25)
    train, test = (load("folder", split, tmp_path) for split in ("train", "test"))
    assert (train.name, train.shape, train.levels) == ("folder", (3, 32, 32), 256)
    assert train.labels is None and test.labels is None
    assert test.images[:, 0, 0, 0].tolist() == [9, 19]
    assert train.images[:, 0, 0, 0].tolist() == [k for k in range(25) if k not in (9, 19)]
    assert train.images[3, :, 5, 7].tolist() == [3, 6, 100]


def test_pictures_lie_in_subfolders_in_the_order_of_their_paths(tmp_path, caplog):
    """And hidden files, and what desktops leave behind, are passed over."""
    fill(tmp_path / "b", 9)
    Image.new("RGB", (40, 40), (200, 0, 0)).save(tmp_path / "a.png")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", ".git/config", "__MACOSX/._a.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("no picture")
    assert load("folder", "test", tmp_path).images[:, 0, 0, 0].tolist() == [8]
    assert load("folder", "train", tmp_path).images[:2, 0, 0, 0].tolist() == [200, 0]
    assert not caplog.records


@pytest.mark.parametrize("text", ["These are my pictures.\n", "P3 is what I call them", ""])
def test_files_that_are_no_pictures_are_skipped_with_one_warning(tmp_path, caplog, text):
    fill(tmp_path)
    names = ["001.txt", "002.png.txt", "notes.png", "zz/notes"]
    (tmp_path / "zz").mkdir()
    for name in names:
        (tmp_path / name).write_text(text)
    with caplog.at_level(logging.WARNING, "mintnet.data.folder"):
        train, test = (load("folder", split, tmp_path) for split in ("train", "test"))
    assert (len(train), len(test), train.skipped, test.skipped) == (9, 1, 4, 4)
    assert test.images[:, 0, 0, 0].tolist() == [9]  # they do not move the split
    (record,) = caplog.records
    assert "skipped 001.txt, 002.png.txt, notes.png and 1 more" in record.message


def test_small_and_too_few_pictures(tmp_path, raises_data_error):
    for count in (0, 9):
        fill(tmp_path, count)
        with raises_data_error("at least 10 pictures", f"has {count}"):
            load("folder", "train", tmp_path)
    fill(tmp_path)
    Image.new("RGB", (31, 50)).save(tmp_path / "small.png")
    for split in ("train", "test"):
        with raises_data_error(tmp_path / "small.png", "32x32 pixels; got 31x50", "31 or less"):
            load("folder", split, tmp_path)
    assert load("folder", "train", tmp_path, size=31).shape == (3, 31, 31)
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"at least 1; got {size}"):
            load("folder", "train", tmp_path, size=size)


@pytest.mark.parametrize("format", ["png", "jpeg", "gif"])
def test_truncated_pictures_are_named(tmp_path, rng, raises_data_error, format):
    fill(tmp_path)
    path = tmp_path / f"000.{format}"
    (tmp_path / "000.png").unlink()
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(buffer, format)
    path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    with raises_data_error(path, "truncated or damaged"):
        load("folder", "train", tmp_path)
    assert len(load("folder", "test", tmp_path)) == 1


@pytest.mark.parametrize("end", ["png", "jpg", "bmp", "gif", "webp", "tiff", "ppm"])
def test_formats(tmp_path, end):
    path = tmp_path / f"a.{end}"
    Image.new("RGB", (20, 24), (200, 100, 50)).save(path)
    for grey, expected in ((False, [200, 100, 50]), (True, [124])):
        image = read_picture(path, 8, grey)
        assert image.shape == (len(expected), 8, 8)
        assert np.abs(image.reshape(len(expected), -1).T.astype(float) - expected).max() < 5
    if end in ("jpg", "png"):
        bright, exif = np.zeros((32, 32), np.uint8), Image.Exif()
        bright[:, :16] = 255  # the left half
        exif[0x0112] = 6  # to be turned clockwise: the left becomes the top
        Image.fromarray(bright).save(path, exif=exif)
        read = read_picture(path, 32, grey=True)[0]
        assert read[:12].min() > 240 and read[20:].max() < 15


def test_transparent_is_white(tmp_path):
    path, image = tmp_path / "a.png", Image.new("P", (9, 9), 0)
    image.putpalette([10, 20, 30] * 256)
    for picture, options, expected in (
        (Image.new("RGBA", (9, 9), (255, 0, 0, 0)), {}, [255] * 3),
        (image, {"transparency": bytes(256)}, [255] * 3),
        (image, {}, [10, 20, 30]),
    ):
        picture.save(path, **options)
        assert (expected == read_picture(path, 4, grey=False).reshape(3, -1).T).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_modes(tmp_path, mode):
    Image.new("RGB", (9, 9), "white").convert(mode).save(tmp_path / "a.tiff")
    for grey in (False, True):
        assert read_picture(tmp_path / "a.tiff", 4, grey).min() >= 254


def test_sixteen_bits_lose_the_lower_eight_and_thirty_two_are_refused(tmp_path, raises_data_error):
    path = tmp_path / "a.tiff"
    for value, least in ((255 * 256 + 3, 254), (77 * 256 + 200, 77)):
        Image.fromarray(np.full((9, 9), value, np.uint16)).save(path)
        for grey in (False, True):
            read = read_picture(path, 4, grey)
            assert least <= read.min() <= read.max() <= least + (least > 77)
    for dtype in (np.int32, np.float32):
        Image.fromarray(np.full((9, 9), 7, dtype)).save(path)
        with raises_data_error("a.tiff", "8 or 16 bits"):
            read_picture(path, 4, grey=True)


def test_the_first_frame_is_taken_and_its_centre_cropped(tmp_path):
    image = np.full((20, 60), 10, np.uint8)
    image[:, 20:40] = 200
    for stored in (image, image.T.copy()):
        first, second = Image.fromarray(stored), Image.new("L", stored.shape[::-1], 90)
        first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
        assert (read_picture(tmp_path / "a.gif", 10, grey=True) == 200).all()


def test_the_right_size_is_left_alone_and_shrinking_averages(tmp_path, rng):
    image = rng.integers(0, 256, (12, 12, 3), np.uint8)
    Image.fromarray(image).save(tmp_path / "a.png")
    same = read_picture(tmp_path / "a.png", 12, grey=False)
    assert np.array_equal(same.transpose(1, 2, 0), image)
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "a.png")
    inner = read_picture(tmp_path / "a.png", 8, grey=True)[:, 1:-1, 1:-1]
    assert np.abs(inner.astype(int) - 127).max() <= 3
