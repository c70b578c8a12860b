"""Downloads from a mirror on this machine, and checks of files that are there."""

import gzip
import http.server
import io
import os
import tarfile
import threading

import pytest

from mintnet.data import download, get, load, verify
from mintnet.data.published import ARCHIVES, CIFAR10_BINARY, CIFAR10_PYTHON, MNIST, md5


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.lstrip("/")
        self.server.asked.append(name)
        data = self.server.files.get(name)
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """A mirror on this machine: the files it has and the names it was asked for."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked = {}, []
        server.url = f"http://127.0.0.1:{server.server_port}"
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "127.0.0.1")
        for name in ("MNIST_MIRRORS", "CIFAR10_MIRRORS"):
            monkeypatch.setattr(download, name, (server.url,))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def mnist(tmp_path, write_mnist, monkeypatch):
    """Small files, published in the place of MNIST's: packed content by name."""
    write_mnist(tmp_path / "original")
    files = {p.name: p.read_bytes() for p in (tmp_path / "original").iterdir()}
    for name in MNIST:
        monkeypatch.setitem(MNIST, name, md5(gzip.decompress(files[f"{name}.gz"])))
    return files


def archive(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in {**files, "readme.html": b"read me"}.items():
            member = tarfile.TarInfo(f"cifar-10-batches/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def cifar10(tmp_path, write_cifar10, monkeypatch):
    """Small archives, published in the place of CIFAR-10's."""
    made = {}
    for name, known in zip(ARCHIVES, (CIFAR10_BINARY, CIFAR10_PYTHON), strict=True):
        folder = tmp_path / "originals" / name
        write_cifar10(folder, binary=known is CIFAR10_BINARY)
        files = {p.name: p.read_bytes() for p in folder.iterdir()}
        for file in known:
            monkeypatch.setitem(known, file, md5(files[file]))
        made[name] = archive(files)
        monkeypatch.setitem(ARCHIVES, name, md5(made[name]))
    return made


def statuses(name, folder):
    return [status for _, status in verify(name, folder)]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_set_is_downloaded_once(tmp_path, server, mnist, cifar10, name):
    server.files = {**mnist, **cifar10}
    names = {"mnist": [f"{file}.gz" for file in MNIST], "cifar10": list(CIFAR10_BINARY)}[name]
    assert statuses(name, tmp_path) == ["missing"] * len(names)
    files = get(name, tmp_path)
    assert [f.relative_to(tmp_path).as_posix() for f in files] == [f"{name}/{n}" for n in names]
    assert statuses(name, tmp_path) == ["verified"] * len(names)
    assert sorted(os.listdir(tmp_path / name)) == sorted(names)
    assert len(load(name, "train", tmp_path)) == {"mnist": 7, "cifar10": 15}[name]
    assert get(name, tmp_path) == files
    asked = {"mnist": sorted(names), "cifar10": ["cifar-10-binary.tar.gz"]}[name]
    assert sorted(server.asked) == asked


def test_only_what_is_missing_by_its_content_is_downloaded(tmp_path, server, mnist, monkeypatch):
    """From a second mirror, packed in another way, into a folder that is called as the set is."""
    server.files = {n: gzip.compress(gzip.decompress(d), 1, mtime=9) for n, d in mnist.items()}
    assert server.files != mnist
    monkeypatch.setattr(download, "MNIST_MIRRORS", (f"{server.url}/gone", server.url))
    (name, data), *rest = mnist.items()
    plain = tmp_path / "mnist" / name.removesuffix(".gz")
    plain.parent.mkdir()
    plain.write_bytes(gzip.decompress(data))
    files = get("mnist", plain.parent)
    assert plain in files and {f.parent for f in files} == {plain.parent}
    assert {n for n in server.asked if "gone" not in n} == {other for other, _ in rest}
    assert statuses("mnist", tmp_path) == ["verified"] * 4


@pytest.mark.parametrize("fault", [b"other", "cut", None])
def test_wrong_downloads_leave_nothing_behind(tmp_path, server, mnist, raises_data_error, fault):
    name = "t10k-images-idx3-ubyte.gz"
    server.files = {**mnist, name: mnist[name][:-9] if fault == "cut" else fault}
    why = "HTTP 404" if fault is None else "not the published content"
    with raises_data_error(f"{server.url}/{name} ({why})", f"at {tmp_path / 'mnist' / name}"):
        get("mnist", tmp_path)
    assert set(os.listdir(tmp_path / "mnist")) < set(mnist) - {name}


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_no_network(tmp_path, server, raises_data_error, name):
    server.shutdown()
    server.server_close()
    first = {"mnist": "train-images-idx3-ubyte.gz", "cifar10": "cifar-10-binary.tar.gz"}[name]
    with raises_data_error(f"{server.url}/{first} (ConnectionError)", tmp_path / name / first):
        get(name, tmp_path)


def test_damaged_files_are_named_and_kept(tmp_path, server, mnist, raises_data_error):
    server.files = mnist
    files = get("mnist", tmp_path)
    server.asked.clear()
    for data in (files[2].read_bytes()[:-9], gzip.compress(b"other"), b""):
        files[2].write_bytes(data)
        assert statuses("mnist", tmp_path) == ["verified", "verified", "damaged", "verified"]
        with raises_data_error(files[2], "damaged", "move it away"):
            get("mnist", tmp_path)
        assert files[2].read_bytes() == data
    assert server.asked == []


@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("below", ["", "cifar10"])
def test_an_archive_put_there_by_hand_is_unpacked(tmp_path, server, cifar10, version, below):
    """And a batch that goes missing comes from the archive of its version."""
    folder, name = tmp_path / "mine", f"cifar-10-{version}.tar.gz"
    (folder / below).mkdir(parents=True)
    (folder / below / name).write_bytes(cifar10[name])
    files = get("cifar10", folder)
    assert statuses("cifar10", folder) == ["verified"] * 6 and server.asked == []
    assert len(load("cifar10", "test", folder)) == 3
    (folder / below / name).unlink()  # it was kept
    files[3].unlink()
    kept, server.files = files[0].stat().st_mtime_ns, cifar10
    assert get("cifar10", folder) == files and server.asked == [name]
    assert statuses("cifar10", folder) == ["verified"] * 6
    assert files[0].stat().st_mtime_ns == kept


def test_damaged_archives(tmp_path, server, cifar10, raises_data_error, monkeypatch):
    name = "cifar-10-binary.tar.gz"
    cut, other = cifar10[name][:-100], archive({file: b"other" for file in CIFAR10_BINARY})
    for data, published, words in (
        (cut, None, "md5 differs"),
        (cut, md5(cut), "cannot be unpacked"),
        (other, md5(other), "data_batch_1.bin in it is not the published one"),
    ):
        (tmp_path / name).write_bytes(data)
        monkeypatch.setitem(ARCHIVES, name, published or ARCHIVES[name])
        with raises_data_error(tmp_path / name, words):
            get("cifar10", tmp_path)
    assert statuses("cifar10", tmp_path) == ["missing"] * 6


def test_what_cannot_be_written_is_named(tmp_path, server, mnist, raises_with):
    server.files = mnist
    (tmp_path / "mnist").write_text("a file where the folder should be")
    with raises_with(OSError, "cannot be written", tmp_path / "mnist"):
        get("mnist", tmp_path)


def test_imagenet32_is_explained(tmp_path, server, write_box, raises_data_error):
    with raises_data_error("image-net.org", tmp_path / "imagenet32", "valid_32x32.npy"):
        get("imagenet32", tmp_path)
    write_box(tmp_path / "imagenet32", npz=True)
    assert statuses("imagenet32", tmp_path) == ["present"] * 11
    assert len(get("imagenet32", tmp_path)) == 11
    (tmp_path / "imagenet32" / "val_data.npz").unlink()
    with raises_data_error("registration", "val_data;"):
        get("imagenet32", tmp_path)
    assert server.asked == []


@pytest.mark.parametrize("name", ["folder", "mnits"])
def test_other_names(tmp_path, name):
    with pytest.raises(ValueError, match=f"'{name}'.*digits, mnist, cifar10, imagenet32"):
        get(name, tmp_path)
    assert get("digits", tmp_path) == []  # they ship with the package
