"""Which family of layers learns pictures of one's own better: 300 pictures, equal CPU time.

    python benchmarks/pictures.py cifar10 --data DIR --out results/training/pictures.json

The first 300 training images of MNIST or CIFAR-10 become PNG files, ``mintnet train folder`` learns
them with mixture layers and with Mint layers, and the last 200 training images say how well. Each
run has a schedule of its own: as many steps as take that many seconds of CPU time on one thread.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mintnet import Flow
from mintnet.analysis.origin import commit, machine
from mintnet.data import ImageData, load
from mintnet.training import evaluate, train

PICTURES, HELD_OUT, TIMED = 300, 200, 4
MINT: dict[str, Any] = {"pairs": (2, 3, 4), "learning_rate": 3e-3, "schedule": "cosine"}
MINT |= {"muon": False, "adam": False, "eps": 1e-4, "clip": 1500.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "mixture layers": {},
    "Mint layers": MINT,
}


def measure(pictures: Path, held_out: ImageData, seconds: float, **options: Any) -> dict[str, Any]:
    """Train for that many seconds of CPU time; bits per dimension of pictures not trained on."""
    with tempfile.TemporaryDirectory() as place:

        def taken(run: str, steps: int) -> float:
            begin = time.process_time()
            given = {**options, "max_steps": steps, "epochs": 10**6, "threads": 1}
            train("folder", Path(place, run), data=str(pictures), sample_every=0, **given)
            return time.process_time() - begin

        short, longer = taken("short", 2), taken("longer", 2 + TIMED)
        steps = max(TIMED, round(seconds * TIMED / (longer - short)))
        cpu = taken("run", steps)
        flow = Flow.load(Path(place, "run"))
    found = evaluate(flow, held_out)
    return {
        "steps": steps,
        "cpu_seconds": round(cpu, 1),
        "parameters": flow.parameter_count(),
        "held_out_bits_per_dim": round(found.bits_per_dim, 4),
        "standard_error": round(found.standard_error, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Families of layers on 300 pictures.")
    parser.add_argument("name", choices=("mnist", "cifar10"))
    parser.add_argument("--data", required=True, help="the folder of the data set")
    parser.add_argument("--seconds", type=float, default=60.0, help="of CPU time for each")
    parser.add_argument("--out", type=Path, help="a JSON file to add the figures to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load(options.name, "train", options.data)
    c, size, _ = data.shape
    given = {"size": size, "grey": c == 1, "augmentation": "none" if c == 1 else "flip"}
    rows = {}
    with tempfile.TemporaryDirectory() as place:
        for k, image in enumerate(data.images[:PICTURES]):
            pixels = image.permute(1, 2, 0).squeeze(-1).numpy()
            Image.fromarray(pixels).save(Path(place, f"{k:03}.png"))
        for family, chosen in FAMILIES.items():
            held_out = ImageData(options.name, data.images[-HELD_OUT:])
            rows[family] = measure(Path(place), held_out, options.seconds, **given, **chosen)
            print(f"{options.name}, {family}: {rows[family]}", flush=True)
    if options.out:
        known = json.loads(options.out.read_text()) if options.out.exists() else {}
        command = f"python benchmarks/pictures.py {options.name} --seconds {options.seconds:g}"
        facts = {"command": command, "commit": commit(), "machine": machine(torch.device("cpu"))}
        known[options.name] = {**facts, "families": rows}
        options.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
