"""Damaged model folders, run folders and checkpoints of the authors, for the campaign `files`.

Each function takes a random generator, the folder with whole files and the folder of the case, and
gives the command to run, what its message must name, what is said where it is accepted (None: it
must not be), and the room on the disk (None: enough).
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Made = tuple[list[str], str]

DEEP = 100_000
NUMBERS: list[Any] = ["1e999", "-1e999", "NaN", str(10**400), str(-(10**400)), "true", '"3"', "[]"]
NUMBERS += ["{}", "[[[1]]]", '"' + "x" * 100_000 + '"', "[" * DEEP + "]" * DEEP, "-1"]
WHOLE = [*NUMBERS, "0.5", "null", "1e30", str(2**40), str(2**63), str(2**64)]
FIELDS: dict[str, dict[str, list[Any]]] = {
    "tiny": {
        "format": [*WHOLE, "2", "0"],
        "kind": [*WHOLE, '"classifier"', '"model"', '""'],
        "levels": [*WHOLE, "0", "1", "257"],
        "logit_lambda": [*NUMBERS, "0", "0.5", "1", "null"],
        "centre": [*NUMBERS[:-1], "1e305"],
        "base": [*NUMBERS, '"cauchy"', "3"],
        "net": [*WHOLE, "3"],
        "net.shape": [*WHOLE, "[1, 8]", "[1, 8, 8, 8]", "[1, 8, -8]", "[0, 8, 8]", "[1, 8, 7]"],
        "net.pairs": [*WHOLE, "[0, 1]", "[1]", "[1, -1]", "[1, 1, 1, 1]", "[1, 0.5]", "[1, true]"],
        "net.filters": [*WHOLE, "[0, 1]", "[1]", "[2, 2]", "[1, 1e30]", "[true, true]"],
        "net.activation": [*WHOLE, '"relu6"', '""', "3"],
        "net.kernel_size": [*WHOLE, "2", "0", "5", "99"],
        "net.t_form": [*WHOLE, '"exp"', "3"],
        "net.couplings": [*WHOLE[:-4], "3", "65536"],
        "net.unknown": ["1"],
        "data": ["1e999", "true", "[]", "3", '{"name": 3}', '{"name": ["a"]}', '{"folder": 3}'],
        "preset": ["3", "[]", "true", "{}"],
        "validation": ['"a"', "[]", "1e999", "true"],
    },
    "deep": {
        "input": [*NUMBERS, '"other"', "3"],
        "net.layers": [*WHOLE, "[2]", "[1000]", "[100000000]"],
        "net.blocks": [*WHOLE, "[2]", "[0]"],
        "net.components": [*WHOLE, "[3]", "[60000]"],
        "net.classes": [*WHOLE[:-4], "4", "60000"],
    },
    "classifier": {
        "classes": [*WHOLE, "0", "11", "60000"],
        "pixels": [*WHOLE, "3"],
        "pixels.shape": [*WHOLE, "[1]", "[5, 32, 32]", "[3, 1099511627776, 32]"],
        "pixels.levels": [*WHOLE, "1", "300"],
        "pixels.mean": [*WHOLE, '["a"]', "[null]", "[NaN]", "[1e999]", "[0.5, 0.5]"],
        "pixels.deviation": [*WHOLE, "[0]", "[-1]", "[NaN]", "[1e999]", "[true]", "[0.1, 0.2]"],
        "net.width": [*WHOLE, "2", "8", "60000"],
        "net.elu": [*NUMBERS[:5], "3", "null", '"yes"'],
    },
}
ABSURD: list[dict[str, Any]] = [
    {"shape": [1, 2**40, 2**40]},
    {"shape": [1, 40_000, 40_000]},
    {"shape": [65536, 8, 8]},
    {"filters": [15_000, 1]},
    {"filters": [1, 15_000]},
    {"filters": [65_536, 65_536]},
    {"pairs": [10**8, 1]},
    {"pairs": [1000, 1000]},
    {"kernel_size": 101},
    {"couplings": 65_536},
    {"pairs": [1] * 1000, "filters": [1] * 1000},
]
CONTENTS: list[bytes] = [b"", b"{", b"[]", b"null", b"3", b'"text"', b"\xff\xfe\x00", b"{}" * 3]
CONTENTS += [b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b" " * 20_000_000]
CONTENTS += [b"\x89PNG\r\n\x1a\n" + bytes(100), bytes(range(256)) * 10, b"{'format': 1}"]


def put(path: Path, value: Any) -> None:
    """Write bytes, or make something that is no file in its place."""
    path.unlink(missing_ok=True)
    if value == "pipe":
        os.mkfifo(path)
    elif value == "folder":
        path.mkdir()
    elif value == "loop":
        path.symlink_to(path.name)
    elif value == "nowhere":
        path.symlink_to("nowhere-at-all")
    elif value == "device":
        path.symlink_to("/dev/zero")
    elif value != "missing":
        path.write_bytes(value)


OTHERS = ("pipe", "folder", "loop", "nowhere", "device")


def command(rng: random.Random, folder: str) -> list[str]:
    """A command that reads a model."""
    out = ["-n", "1", "--out", "out.png"]
    return rng.choice([["info", folder], ["sample", folder, *out], ["evaluate", folder, "-n", "1"]])


def taken(home: Path, folder: Path, name: str) -> Path:
    shutil.copytree(home / name, folder / "model")
    return folder / "model"


def config(rng: random.Random, home: Path, folder: Path) -> Made:
    """A field of config.json says something else."""
    name = rng.choice([*FIELDS, "tiny", "tiny"])
    field = rng.choice(list(FIELDS[name]))
    path = taken(home, folder, name) / "config.json"
    content = json.loads(path.read_text())
    *above, last = field.split(".")
    place = content
    for key in above:
        place = place[key]
    place[last] = "@"
    value = rng.choice(FIELDS[name][field])
    path.write_text(json.dumps(content).replace('"@"', value))
    return command(rng, "model"), "config.json"


def without(rng: random.Random, home: Path, folder: Path) -> Made:
    """A field of config.json that is needed is not there."""
    name = rng.choice(list(FIELDS))
    path = taken(home, folder, name) / "config.json"
    content = json.loads(path.read_text())
    needed = ["format", "kind", "net", "net.shape", "net.filters", "levels"]
    if name == "classifier":
        needed = ["format", "kind", "net", "pixels", "pixels.shape", "classes"]
    above, _, last = rng.choice(needed).rpartition(".")
    del (content[above] if above else content)[last]
    path.write_text(json.dumps(content))
    return command(rng, "model"), "config.json"


def absurd(rng: random.Random, home: Path, folder: Path) -> Made:
    """config.json asks for a network that no memory holds."""
    path = taken(home, folder, "tiny") / "config.json"
    content = json.loads(path.read_text())
    content["net"] |= rng.choice(ABSURD)
    path.write_text(json.dumps(content))
    return command(rng, "model"), "config.json"


def replaced(rng: random.Random, home: Path, folder: Path) -> Made:
    """A file of a model folder is something else, or not there."""
    name = rng.choice(["config.json", "model.safetensors"])
    put(taken(home, folder, "tiny") / name, rng.choice([*CONTENTS, *OTHERS, *OTHERS, "missing"]))
    return command(rng, "model"), name


def weights(rng: random.Random, home: Path, folder: Path) -> Made:
    """A tensor of model.safetensors is not as its configuration says."""
    path = taken(home, folder, rng.choice(["tiny", "deep", "classifier"])) / "model.safetensors"
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    header.pop("__metadata__", None)
    name = rng.choice(sorted(header))
    entry = header[name]
    begin, end = entry["data_offsets"]
    kind = rng.choice(
        ["dtype", "dtype", "shape", "values", "cut", "name", "gone", "length", "swap"]
    )
    if kind == "dtype":  # with as many bytes as that needs
        kinds: list[Any] = [("F8_E4M3", 1), ("F8_E5M2", 1), ("I32", 4), ("I64", 8), ("BOOL", 1)]
        kinds += [("U8", 1), ("C64", 8), ("I16", 2), ("F4", 1), ("X", 4), (3, 4)]
        new, size = rng.choice(kinds)
        count = (end - begin) // 4
        header = {n: e for n, e in header.items() if n != name}
        other = {"dtype": new, "shape": entry["shape"]}
        header[name] = {**other, "data_offsets": [len(data), len(data) + size * count]}
        spare = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        if rng.random() < 0.5:
            header["spare"] = spare
        data += bytes(size * count)
    elif kind == "shape":
        entry["shape"] = rng.choice([[-1], [2**62], [10**30], [], [1, 1], ["a"], None, 3, [2.5]])
    elif kind == "values":
        value = rng.choice([float("nan"), float("inf"), -float("inf")])
        data = data[:begin] + struct.pack("<f", value) + data[begin + 4 :]
    elif kind == "cut":
        data = data[: rng.randrange(len(data))]
    elif kind == "name":
        header[name + "x"] = header.pop(name)
    elif kind == "gone":
        del header[name]
    elif kind == "swap":
        entry["data_offsets"] = rng.choice(
            [[end, begin], [-1, 4], [0, 2**62], [0], None, ["a", "b"]]
        )
    text = json.dumps(header).encode()
    size = rng.choice([0, 1, 2**40, 2**63, 2**64 - 1]) if kind == "length" else len(text)
    path.write_bytes(struct.pack("<Q", size) + text + data)
    return command(rng, "model"), "model.safetensors"


def scores(rng: random.Random, home: Path, folder: Path) -> Made:
    """The scores of reference images beside a model are none."""
    path = taken(home, folder, "tiny") / "scores.safetensors"
    if rng.random() < 0.5:
        put(path, rng.choice([*CONTENTS, *OTHERS]))
    else:
        odd = [value for value in odd_tensors()[4:10]]
        save_file({rng.choice(["statistics", "edges", "other"]): rng.choice(odd)}, path)
    return command(rng, "model"), "scores.safetensors"


RUN_FIELDS: dict[str, list[Any]] = {
    "format": [*WHOLE, "1"],
    "steps": WHOLE,
    "data": [*NUMBERS[:8], "3", "null"],
    "data.checksum": WHOLE,
    "data.images": WHOLE,
    "recipe": [*WHOLE, "3"],
    "recipe.preset": [*WHOLE, '"mnist"'],
    "recipe.epochs": [*WHOLE[:-3], "0"],
    "recipe.batch_size": [*WHOLE[:-3], "0"],
    "recipe.learning_rate": [*NUMBERS, "0"],
    "recipe.filters": [*WHOLE[:-5], "[15000]", "[0]", '["a"]', "[1e30]"],
    "recipe.pairs": [*WHOLE[:-5], "[100000000]", "[0]"],
    "recipe.seed": [*NUMBERS[:-1], "0.5"],
    "recipe.precision": [*NUMBERS, '"float8"'],
    "recipe.unknown": ["1"],
}


def run_json(rng: random.Random, home: Path, folder: Path) -> Made:
    """run.json lacks a part or says something else, where a run is to go on."""
    run = folder / "run"
    shutil.copytree(home / "run", run)
    path = run / "run.json"
    content = json.loads(path.read_text())
    if rng.random() < 0.3:
        put(path, rng.choice([*CONTENTS, *OTHERS]))
    elif rng.random() < 0.3:
        del content[rng.choice(["format", "recipe", "data", "steps"])]
        path.write_text(json.dumps(content))
    else:
        field = rng.choice(list(RUN_FIELDS))
        above, _, last = field.rpartition(".")
        (content[above] if above else content)[last] = "@"
        path.write_text(json.dumps(content).replace('"@"', rng.choice(RUN_FIELDS[field])))
    return resume(), "run"


def resume() -> list[str]:
    return ["train", "digits", "--run", "run", "--resume", "--max-steps", "3"]


def checkpoint(rng: random.Random, home: Path, folder: Path) -> Made:
    """checkpoint.pt is of another network, damaged, or something else."""
    run = folder / "run"
    shutil.copytree(home / "run", run)
    path = run / "checkpoint.pt"
    whole = path.read_bytes()
    kind = rng.choice(["other", "cut", "content", "state", "state", "flip", "tensor", "special"])
    if kind == "other":
        shutil.copy(home / "other-run" / "checkpoint.pt", path)
    elif kind == "cut":
        path.write_bytes(whole[: rng.randrange(len(whole))])
    elif kind == "content":
        path.write_bytes(rng.choice(CONTENTS))
    elif kind == "special":
        put(path, rng.choice(OTHERS))
    elif kind == "flip":  # in a tensor, where only the checksum tells
        with zipfile.ZipFile(path) as file:
            entry = max(file.infolist(), key=lambda info: info.file_size)
        names = struct.unpack("<2H", whole[entry.header_offset + 26 : entry.header_offset + 30])
        place = entry.header_offset + 30 + sum(names) + rng.randrange(entry.file_size)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
    else:
        content = torch.load(path, weights_only=True)
        if kind == "tensor":
            part = content["state"]["model"]
            part[rng.choice(list(part))] = rng.choice(odd_tensors())
        elif rng.random() < 0.3:
            del content["state"][rng.choice(["step", "model", "optimizer", "seconds"])]
        else:
            name = rng.choice(["step", "model", "optimizer", "seconds", "best_step"])
            odd = [None, "a", -1, float("nan"), float("inf"), 10**400, True, [], [1], 2**70]
            content["state"][name] = rng.choice(odd)
        torch.save(content, path)
    return resume(), "checkpoint.pt"


def odd_tensors() -> list[Any]:
    """What may stand in a checkpoint where a tensor of weights is expected."""
    return [
        [1.0, 2.0],
        3,
        None,
        "text",
        torch.full((2, 2), float("nan")),
        torch.full((2, 2), float("inf")),
        torch.full((2, 2), 1e300, dtype=torch.float64),
        torch.ones(2, 2, dtype=torch.int32),
        torch.ones(2, 2, dtype=torch.bool),
        torch.ones(2, 2, dtype=torch.complex64),
        torch.ones(2, 2).to_sparse(),
        torch.ones(2, 2).to(torch.float8_e4m3fn),
        torch.ones(2, 2, device="meta"),
        torch.ones(1).expand(10**5, 10**5),
        torch.ones(0),
        torch.ones(()),
    ]


def metrics(rng: random.Random, home: Path, folder: Path) -> Made:
    """metrics.jsonl is binary, or has rows of something else."""
    run = folder / "run"
    shutil.copytree(home / "run", run)
    path = run / "metrics.jsonl"
    rows = [b"\x00\xff\xfe binary\n", b"[1]\n", b'{"kind": "train"}\n', b'{"kind": 3, "step": 1}\n']
    rows += [b'{"kind": "train", "step": 1e999}\n', b"[" * DEEP + b"\n", b"not json\n", b"\n"]
    if rng.random() < 0.3:
        put(path, rng.choice(OTHERS))
    else:
        path.write_bytes(rng.choice(rows) + path.read_bytes())
    return resume(), "metrics.jsonl"


def original(rng: random.Random, home: Path, folder: Path) -> Made:
    """A checkpoint of the authors is damaged, or holds other things than weights."""
    name = rng.choice(["original_density_grey.pth", "original_classifier.pth"])
    path = folder / "a.pth"
    shutil.copy(home / name, path)
    whole = path.read_bytes()
    content = torch.load(path, weights_only=True)
    kind = rng.choice(
        ["value", "value", "value", "cut", "content", "special", "beside", "bomb", "code"]
    )
    named = "a.pth"
    if kind == "value":
        state = copy.copy(content[0])
        chosen = [key for key in state if not re.search("mask|num_batches", key)]  # not read
        key = rng.choice(chosen)
        before, value = state[key], rng.choice(odd_tensors())
        fill = isinstance(value, torch.Tensor) and value.shape == (2, 2)
        if fill and value.layout == torch.strided and value.device.type == "cpu":
            value = value.flatten()[:1].expand(before.shape).clone()
        state[key] = value
        torch.save([state, *content[1:]], path)
    elif kind == "cut":
        path.write_bytes(whole[: rng.randrange(len(whole) - 200)])
    elif kind == "content":
        path.write_bytes(rng.choice(CONTENTS))
    elif kind == "special":
        put(path, rng.choice([*OTHERS, "missing"]))
    elif kind == "beside":
        values = rng.choice([*NUMBERS, "0"])
        if "classifier" in name:
            text = f'{{"channels": {values}}}'
        else:
            text = f'{{"lambda_logit": {values}}}'
        (folder / "a.json").write_text("[1]" if values == "0" else text)
        named = "a.json" if values != "-1" or "classifier" in name else ""
    elif kind == "bomb":  # a tensor of 4 GB of zeros, packed
        torch.save([{"module.layers.0.0.weight1": torch.zeros(4)}], path)
        with zipfile.ZipFile(path) as file:
            parts = {info.filename: file.read(info) for info in file.infolist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            for part, data in parts.items():
                file.writestr(part, data + bytes(50_000_000) if "/data/" in part else data)
    else:
        path.write_bytes(pickle.dumps(rng.choice([Call(), [Call()], {"a": Call()}])))
    return ["import-original", "a.pth", "out"], named


class Call:
    """Pickles as a call."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


KINDS: dict[str, Callable[..., Any]] = {
    "config:field": config,
    "config:field-2": config,
    "config:field-3": config,
    "config:missing": without,
    "config:absurd": absurd,
    "config:replaced": replaced,
    "weights:header": weights,
    "weights:header-2": weights,
    "weights:scores": scores,
    "run:run.json": run_json,
    "run:checkpoint": checkpoint,
    "run:metrics": metrics,
    "original:file": original,
    "original:file-2": original,
}
