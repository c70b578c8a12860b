"""Files are whole or not there at all, whatever happens while they are written."""

import errno
import os

import pytest
from PIL import Image

from mintnet.files import SCRATCH, clear_scraps, whole_file, write_bytes


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_a_new_file_and_one_in_the_place_of_another(tmp_path):
    path = tmp_path / "new" / "folder" / "a.txt"
    for text in (b"first", b"second"):
        write_bytes(path, text)
        assert path.read_bytes() == text
    assert names(tmp_path) == ["a.txt", "folder", "new"]


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


def test_a_folder_in_the_way(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError) as info:
        write_bytes(tmp_path / "file" / "below", b"y")
    assert info.value.filename == str(tmp_path / "file" / "below")


def test_the_ending_of_the_name_is_kept_for_those_who_choose_by_it(tmp_path):
    with whole_file(tmp_path / "a.png") as part:
        Image.new("L", (2, 2)).save(part)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_scraps_of_killed_processes(tmp_path):
    (tmp_path / "last" / f"{SCRATCH}abc").mkdir(parents=True)
    (tmp_path / "last" / f"{SCRATCH}abc" / "model.safetensors").write_text("half")
    (tmp_path / "last" / "config.json").write_text("{}")
    clear_scraps(tmp_path)
    assert names(tmp_path) == ["config.json", "last"]
