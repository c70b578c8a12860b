"""Files are whole or not there at all, whatever happens while they are written."""

import errno
import os

import pytest
from PIL import Image

from mintnet.files import SCRATCH, clear_scraps, whole_file, write_bytes


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_a_new_file_and_one_in_the_place_of_another(tmp_path):
    """The ending of its name is kept for those who choose by it."""
    path = tmp_path / "new" / "folder" / "a.png"
    for colour in (1, 2):
        with whole_file(path) as part:
            Image.new("L", (2, 2), colour).save(part)
        assert Image.open(path).getpixel((0, 0)) == colour
    assert names(tmp_path) == ["a.png", "folder", "new"]
    with pytest.raises(OSError) as info:
        write_bytes(path / "below", b"y")  # a file where a folder should be
    assert info.value.filename == str(path / "below")


@pytest.mark.parametrize("mistake", [ValueError("mine"), KeyboardInterrupt(), OSError("no number")])
def test_what_was_there_stays_when_writing_fails(tmp_path, mistake):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(mistake)) as info, whole_file(path) as part:
        part.write_text("half of the n")
        raise mistake
    assert info.value is mistake
    assert path.read_text() == "old" and names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path, monkeypatch, call):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "anything", "somewhere else")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError) as info:
        write_bytes(path, b"new")
    assert (info.value.errno, info.value.filename) == (errno.ENOSPC, str(path))
    assert info.value.strerror == f"cannot be written ({os.strerror(errno.ENOSPC)})"
    assert path.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    told, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (told.append("sync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (told.append("replace"), replace(a, b)))
    write_bytes(tmp_path / "a", b"x")
    assert told == ["sync", "replace", "sync"]  # the file, its name, the folder


def test_scraps_of_killed_processes(tmp_path):
    (tmp_path / "last" / f"{SCRATCH}abc").mkdir(parents=True)
    (tmp_path / "last" / f"{SCRATCH}abc" / "model.safetensors").write_text("half")
    (tmp_path / "last" / "config.json").write_text("{}")
    clear_scraps(tmp_path)
    assert names(tmp_path) == ["config.json", "last"]
