"""Damaged data sets and pictures, for the campaign `files`; see `damaged_models`."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import shutil
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .damaged_models import CONTENTS, OTHERS, put

Made = tuple[Any, ...]


def write_whole(home: Path, rng: np.random.Generator) -> None:
    """Small whole files of each data set."""
    for name in ("mnist", "cifar10-binary", "cifar10-python", "imagenet-old", "imagenet-box"):
        (home / f"data-{name}").mkdir()
    images, labels = rng.integers(0, 256, (4, 28, 28), np.uint8), rng.integers(0, 10, 4, np.uint8)
    for part in ("train", "t10k"):
        folder = home / "data-mnist"
        header = struct.pack(">4B3I", 0, 0, 8, 3, *images.shape)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">4BI", 0, 0, 8, 1, 4)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    flat = rng.integers(0, 256, (4, 3072), np.uint8)
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        records = np.concatenate([labels[:, None], flat], axis=1)
        (home / "data-cifar10-binary" / f"{name}.bin").write_bytes(records.tobytes())
        batch = pickle.dumps({b"data": flat, b"labels": labels.tolist()}, 2)
        (home / "data-cifar10-python" / name).write_bytes(batch)
    for name in ("train_32x32", "valid_32x32"):
        np.save(home / "data-imagenet-old" / f"{name}.npy", flat.reshape(4, 3, 32, 32))
    for name in [*(f"train_data_batch_{k}" for k in range(1, 11)), "val_data"]:
        np.savez(home / "data-imagenet-box" / f"{name}.npz", data=flat, labels=labels + 1)


def evaluate(home: Path, model: str, name: str) -> list[str]:
    options = ["--data-set", name, "--data", "data", "-n", "1", "--device", "cpu"][:6]
    return ["evaluate", str(home / model), *options]


def taken(home: Path, folder: Path, name: str) -> Path:
    shutil.copytree(home / f"data-{name}", folder / "data")
    return folder / "data"


@cache
def bomb() -> bytes:
    """A gzip file of 3 GB of zeros."""
    return gzip.compress(bytes(1 << 26), 1) * 48


def mnist(rng: random.Random, home: Path, folder: Path) -> Made:
    """A file of MNIST is cut, packed without end, or has another header."""
    data = taken(home, folder, "mnist")
    kind = rng.choice(["images", "labels"])
    path = data / ("t10k-images-idx3-ubyte" if kind == "images" else "t10k-labels-idx1-ubyte")
    whole = path.read_bytes()
    how = rng.choice(["cut", "header", "label", "content", "special", "bomb", "gzip", "longer"])
    if how == "cut":
        path.write_bytes(whole[: rng.randrange(len(whole))])
    elif how == "header":
        sizes = [0, 1, 2**31, 2**32 - 1]
        place = rng.choice([3, 4, 8, 12] if kind == "images" else [3, 4])
        new = (
            struct.pack(">I", rng.choice(sizes)) if place > 3 else bytes([rng.choice([0, 2, 255])])
        )
        path.write_bytes(whole[:place] + new + whole[place + len(new) :])
    elif how == "label":
        path = data / "t10k-labels-idx1-ubyte"
        path.write_bytes(path.read_bytes()[:-1] + bytes([rng.randrange(10, 256)]))
    elif how == "content":
        path.write_bytes(rng.choice(CONTENTS))
    elif how == "special":
        put(path, rng.choice([*OTHERS, "missing"]))
        return evaluate(home, "mnist", "mnist"), path.name
    elif how == "bomb":
        path.write_bytes(bomb())
    elif how == "gzip":
        packed = gzip.compress(whole)
        path.write_bytes(packed[: rng.randrange(2, len(packed) - 1)])
    else:
        path.write_bytes(whole + b"\0")
    return evaluate(home, "mnist", "mnist"), "data"


def labels(rng: random.Random) -> Any:
    """Labels that are none."""
    nested: Any = [1, 2]
    for _ in range(60):
        nested = [nested, nested]
    odd: list[Any] = [nested, [nested] * 4, [1.0] * 4, ["a"] * 4, [1] * 3, [10**400] * 4, [-1] * 4]
    return rng.choice([*odd, None, 3, {}, [None] * 4, [99999] * 4, np.zeros((4, 4), np.int64)])


def images(rng: random.Random) -> Any:
    """Pixels that are none."""
    odd: list[Any] = [None, 3, [1, 2], b"bytes", np.zeros((4, 3071), np.uint8), np.zeros((0, 3072))]
    odd += [np.zeros((4, 3072), np.float32), np.zeros((4, 3072), bool), np.array([{}, {}])]
    odd += [np.broadcast_to(np.uint8(0), (4, 3072)).astype(">u2"), np.zeros(3072 * 4, np.uint8)]
    return rng.choice(odd)


class Call:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def cifar10(rng: random.Random, home: Path, folder: Path) -> Made:
    """A batch of CIFAR-10 is cut, of other content, or a pickle with calls."""
    version = rng.choice(["binary", "python", "python"])
    data = taken(home, folder, f"cifar10-{version}")
    path = data / ("test_batch.bin" if version == "binary" else "test_batch")
    whole = path.read_bytes()
    good: dict[Any, Any] = {"data": np.zeros((4, 3072), np.uint8), "labels": [1, 2, 3, 4]}
    how = rng.choice(["cut", "content", "special", "label", "label", "images", "call", "bomb"])
    if how == "cut":
        cut = rng.randrange(1, len(whole))
        path.write_bytes(whole[: cut - (cut % 3073 == 0)])
    elif how == "content":
        path.write_bytes(rng.choice(CONTENTS))
    elif how == "special":
        put(path, rng.choice([*OTHERS, "missing"]))
    elif how == "bomb":
        path.write_bytes(bomb())
    elif version == "binary":
        path.write_bytes(bytes([rng.randrange(10, 256)]) + whole[1:])
    elif how == "label":
        path.write_bytes(pickle.dumps({**good, "labels": labels(rng)}))
    elif how == "images":
        path.write_bytes(pickle.dumps({**good, "data": images(rng)}))
    else:
        calls = [Call(os.system, "touch owned"), Call(subprocess.call, ["touch", "owned"])]
        calls += [Call(eval, "1"), Call(np.ndarray, (10**12,)), Call(np.ndarray, (2**40, 2**40))]
        calls += [
            Call(np.dtype, "V1000000000000"),
            Call(bytearray, 10**12),
            Call(getattr, 1, "real"),
        ]
        path.write_bytes(pickle.dumps({**good, "data": rng.choice(calls)}, rng.randrange(2, 6)))
    return evaluate(home, "cifar10", "cifar10"), "test_batch"


def npy_header(shape: str, kind: str = "|u1", order: str = "False") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npy(rng: random.Random, home: Path, folder: Path) -> Made:
    """A .npy file has another header, or is cut."""
    path = taken(home, folder, "imagenet-old") / "valid_32x32.npy"
    whole = path.read_bytes()
    shapes = ["(-4, 3, 32, 32)", f"({10**30}, 3, 32, 32)", "(4, 3, 32, -32)", "()", "(4,)", "4"]
    shapes += [
        f"({2**62}, 3, 32, 32)",
        "(0, 3, 32, 32)",
        "(4, 3, 32, 33)",
        "(4.5, 3, 32, 32)",
        "[]",
    ]
    shapes += ["(5, 3, 32, 32)", "(True, 3, 32, 32)" * 50, "((4,), 3)", "'a'", "None", "(4, 1" * 99]
    how = rng.choice(["shape", "shape", "cut", "content", "special", "kind", "version", "length"])
    if how == "shape":
        path.write_bytes(npy_header(rng.choice(shapes)) + bytes(4 * 3072))
    elif how == "cut":
        path.write_bytes(whole[: rng.randrange(len(whole))])
    elif how == "content":
        path.write_bytes(rng.choice(CONTENTS))
    elif how == "special":
        put(path, rng.choice([*OTHERS, "missing"]))
    elif how == "kind":
        kind = rng.choice(["|O", "<f4", ">c16", "|V99999999999", "zzz", "|b1", "<M8[s]", "|u3", ""])
        path.write_bytes(npy_header("(4, 3, 32, 32)", kind) + bytes(4 * 3072 * 4))
    elif how == "version":
        path.write_bytes(whole[:6] + bytes([rng.choice([0, 4, 255]), 0]) + whole[8:])
    else:
        path.write_bytes(whole[:8] + b"\xff\xff" + whole[10:])
    return evaluate(home, "cifar10", "imagenet32"), "valid_32x32.npy"


def npz(rng: random.Random, home: Path, folder: Path) -> Made:
    """A .npz file unpacks to more than memory, is cut, or holds other arrays."""
    path = taken(home, folder, "imagenet-box") / "val_data.npz"
    whole = path.read_bytes()
    good: dict[str, Any] = {"data": np.zeros((4, 3072), np.uint8), "labels": np.arange(1, 5)}
    how = rng.choice(["bomb", "claim", "cut", "content", "special", "label", "images"])
    if how == "bomb":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("labels.npy", b"")
            file.writestr("data.npy", b"")
        entry = zlib.compressobj(1, zlib.DEFLATED, -15)
        packed = entry.compress(bytes(1 << 26)) + entry.flush(zlib.Z_FULL_FLUSH)
        path.write_bytes(_zip_of(npy_header("(1000000, 3072)"), packed, 1 << 26, 48))
    elif how == "claim":
        shape = rng.choice(["(1000000000, 3072)", f"({10**30}, 3072)", "(-1, 3072)", "(4, 3073)"])
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("data.npy", npy_header(shape) + bytes(4 * 3072))
            buffer = io.BytesIO()
            np.save(buffer, good["labels"])
            file.writestr("labels.npy", buffer.getvalue())
    elif how == "cut":
        path.write_bytes(whole[: rng.randrange(len(whole))])
    elif how == "content":
        path.write_bytes(rng.choice(CONTENTS))
    elif how == "special":
        put(path, rng.choice([*OTHERS, "missing"]))
    elif how == "label":
        odd = [np.arange(4), np.full(4, 1001), np.ones(3, int), np.ones(4), np.array([{}] * 4)]
        np.savez(path, **{**good, "labels": rng.choice(odd)})
    else:
        odd = [np.zeros((4, 3071), np.uint8), np.zeros((4, 3072)), np.zeros((4, 3072), bool)]
        np.savez(path, **{**good, "data": rng.choice(odd)})
    return evaluate(home, "cifar10", "imagenet32"), "val_data"


def _zip_of(header: bytes, packed: bytes, size: int, times: int) -> bytes:
    """A zip file with data.npy of ``times · size`` zeros, from one packed block of them."""
    first = zlib.compressobj(1, zlib.DEFLATED, -15)
    body = first.compress(header) + first.flush(zlib.Z_FULL_FLUSH) + packed * times
    total = len(header) + size * times
    name = b"data.npy"
    sizes = struct.pack("<3I", 0, len(body), total)
    local = (
        struct.pack("<4s5H", b"PK\3\4", 20, 0, 8, 0, 0) + sizes + struct.pack("<2H", 8, 0) + name
    )
    central = struct.pack("<4s6H", b"PK\1\2", 20, 20, 0, 8, 0, 0) + sizes
    central += struct.pack("<5H2I", 8, 0, 0, 0, 0, 0, 0) + name
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), len(local) + len(body), 0)
    return local + body + central + end


def png(width: int, height: int) -> bytes:
    """A PNG file that claims so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(1 << 24), 1))
    return b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b"")


def picture(rng: random.Random, home: Path, folder: Path) -> Made:
    """A picture among others is a bomb, cut, too small, or no picture at all."""
    shutil.copytree(home / "pictures", folder / "data")
    path = folder / "data" / "09.png"  # the one test image
    whole = path.read_bytes()
    how = rng.choice(["bomb", "cut", "small", "deep", "special", "content", "alone", "crc"])
    argv = evaluate(home, "cifar10", "folder")
    if rng.random() < 0.4 and how not in ("special", "content", "small"):
        argv = ["explain", str(home / "classifier"), "data/09.png", "--out", "out.png"]
    if how == "bomb":
        sides = [
            (60_000, 60_000),
            (30_000, 30_000),
            (16_000, 8_000),
            (2**31 - 1, 1000),
            (9000, 9000),
        ]
        path.write_bytes(png(*rng.choice(sides)))
    elif how == "cut":
        path.write_bytes(whole[: rng.randrange(len(whole) // 2, len(whole) - 200)])
    elif how == "small":
        Image.new("RGB", (rng.randrange(1, 32), 40)).save(path)
    elif how == "deep":
        Image.fromarray(np.zeros((40, 40), rng.choice([np.int32, np.float32]))).save(path, "tiff")
    elif how == "special":
        put(path, rng.choice(("pipe", "loop", "nowhere", "device")))
        return argv, "09.png", "skipped 09.png"
    elif how == "content":  # eleven pictures are left
        path.write_bytes(rng.choice(CONTENTS[:9]))
        return argv, "09.png", "skipped 09.png"
    elif how == "alone":
        for other in (folder / "data").glob("0[0-5].png"):
            other.write_bytes(rng.choice(CONTENTS[:9]))
        return evaluate(home, "cifar10", "folder"), "data"
    else:
        path.write_bytes(whole[:60] + bytes([whole[60] ^ 0xFF]) + whole[61:])
    return argv, "09.png"


KINDS: dict[str, Callable[..., Any]] = {
    "data:mnist": mnist,
    "data:cifar10": cifar10,
    "data:cifar10-2": cifar10,
    "data:npy": npy,
    "data:npz": npz,
    "pictures:folder": picture,
    "pictures:folder-2": picture,
}
