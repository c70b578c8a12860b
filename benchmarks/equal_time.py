"""Networks trained for the same time: families of layers, and what matters in deep ones.

    python -m benchmarks.equal_time cifar10 --data DIR --seconds 60 --out FILE
    python -m benchmarks.equal_time mnist --data DIR --pictures 300 --seconds 60 --out FILE

Each variant is the recipe of a preset with some options, as long as its steps take that many
seconds: of the GPU, where steps are one CUDA graph in bf16, or of CPU time on one thread. The last
1,000 training images are held out and measured in float32. With ``--pictures`` the families learn
that many images by the recipe of ``folder``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mintnet.analysis.origin import commit, machine
from mintnet.data import ImageData, load
from mintnet.training.build import build_task
from mintnet.training.data import Order
from mintnet.training.devices import computing
from mintnet.training.evaluation import evaluate
from mintnet.training.optimizers import learning_rate
from mintnet.training.recipe import RECIPES, Recipe
from mintnet.training.step import Step

HELD_OUT, WARM_UP, TIMED = 1000, 3, 10
Variant = tuple[str, dict[str, Any]]
"""A preset, and options of its recipe."""

MINT: dict[str, Any] = {"batch_size": 256, "couplings": 192, "muon": True, "adam": True}
MINT |= {"learning_rate": 1e-3, "eps": 1e-8, "warmup": 100, "schedule": "linear", "ema": 0.999}
PICTURES: dict[str, Any] = {"pairs": (2, 3, 4), "learning_rate": 3e-3, "schedule": "cosine"}
PICTURES |= {"muon": False, "adam": False, "eps": 1e-4, "clip": 1500.0}


def variants(name: str, pictures: int) -> dict[str, Variant]:
    """What is compared: mixture layers first, as the preset has them."""
    if pictures:
        return {"mixture layers": ("folder", {}), "Mint layers": ("folder", PICTURES)}
    deep = f"{name}-deep"
    base = RECIPES[deep]
    layers, filters = base.layers or (), base.filters or ()
    blocks, components = base.blocks or (), base.components or ()

    def times(numbers: tuple[int, ...], factor: float) -> tuple[int, ...]:
        return tuple(max(1, round(number * factor)) for number in numbers)

    first = {"layers": layers[:1], "filters": filters[:1], "components": components[:1]}
    found: dict[str, Variant] = {
        "mixture layers, the preset": (deep, {}),
        "Mint layers and couplings": (name, {**MINT, "augmentation": base.augmentation}),
        "one layer where there are two": (deep, {"layers": times(layers, 0.5)}),
        "one layer, twice as deep": (
            deep,
            {"layers": times(layers, 0.5), "blocks": times(blocks, 2)},
        ),
        "twice the layers, half as deep": (
            deep,
            {"layers": times(layers, 2), "blocks": times(blocks, 0.5)},
        ),
        "half the components": (deep, {"components": times(components, 0.5)}),
        "half as wide, twice as deep": (
            deep,
            {"filters": times(filters, 0.5), "blocks": times(blocks, 2)},
        ),
    }
    if len(layers) > 1:
        more = {**first, "blocks": times(blocks[:1], 1.5)}
        found["no squeezed stage, half as deep again"] = (deep, more)
    return found


def measure(
    variant: Variant, training: ImageData, held: ImageData, seconds: float, device: torch.device
) -> dict[str, Any]:
    """Train a variant for that long, and what its EMA weights give for images not trained on."""
    recipe = Recipe.of(variant[0], **variant[1], validation=0.0)
    task, cuda = build_task(recipe, training), device.type == "cuda"
    task.model.to(device).train()
    if cuda:
        task.fast = {"dtype": torch.bfloat16, "compiled": False}
    order = Order(recipe, len(training))
    step, images = Step(task, recipe, order.batch_size, None, captured=cuda), training.images
    images = images.to(device)
    clock = time.perf_counter if cuda else time.process_time

    def take(numbers: Iterator[int] | range, total: int) -> float:
        begin = clock()
        for number in numbers:
            places, rate = order(number), learning_rate(recipe, number, total) if total else 0.0
            found = images[places.to(device)], None, places.to(device)
            step(*found, number // order.per_epoch, rate, number)
        return clock() - begin

    take(range(WARM_UP), 0)
    steps = max(TIMED, round(seconds * TIMED / take(range(TIMED), 0)))
    taken = take(range(steps), steps)
    flow = step.averaged.model.eval()
    found = evaluate(flow, held, batch_size=250)
    return {
        "preset": variant[0],
        "options": variant[1],
        "steps": steps,
        "seconds": round(taken, 1),
        "parameters": flow.parameter_count(),
        "held_out_bits_per_dim": round(found.bits_per_dim, 4),
        "standard_error": round(found.standard_error, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Networks trained for the same time.")
    parser.add_argument("name", choices=("mnist", "cifar10"))
    parser.add_argument("--data", required=True, help="the folder of the data set")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training for each")
    parser.add_argument("--pictures", type=int, default=0, help="families alone, so many images")
    parser.add_argument("--only", nargs="*", help="parts of names of variants")
    parser.add_argument("--out", type=Path, help="a JSON file to add the figures to")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load(options.name, "train", options.data)
    count = options.pictures or len(data) - HELD_OUT
    training = replace(data, images=data.images[:count], labels=None)
    held = replace(data, images=data.images[-HELD_OUT:], labels=None)
    rows: dict[str, Any] = {}
    for name, variant in variants(options.name, options.pictures).items():
        if options.only and not any(part in name for part in options.only):
            continue
        with computing(tf32=device.type == "cuda", threads=1 if device.type == "cpu" else None):
            row = measure(variant, training, held, options.seconds, device)
        rows[name] = row
        print(f"{options.name}, {name}: {json.dumps(row)}", flush=True)
        if options.out:
            known = json.loads(options.out.read_text()) if options.out.exists() else {}
            command = f"python -m benchmarks.equal_time {options.name} --data DIR"
            command += f" --seconds {options.seconds:g}"
            command += f" --pictures {options.pictures}" if options.pictures else ""
            facts = {"command": command, "commit": commit(), "machine": machine(device)}
            key = options.name + (f", {options.pictures} pictures" if options.pictures else "")
            before = known.get(key, {}).get("variants", {})
            known[key] = {**facts, "variants": before | rows}
            options.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
