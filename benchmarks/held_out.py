"""Bits per dimension of a shipped density model on the images that its training held out.

python benchmarks/held_out.py MODEL DATA [--device cuda]

The noise is that of validation in training, so that the figure differs from a run's last one by
what rounding the weights to half precision did, and by nothing else.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys

import torch

from mintnet.bench.machine import commit, machine
from mintnet.data import load
from mintnet.files import sha256
from mintnet.models.locate import load_flow, locate
from mintnet.models.storage import WEIGHTS, read_config
from mintnet.precision import true_float32
from mintnet.training.order import held_out, stream
from mintnet.training.task import Batch, DensityTask


def main() -> None:
    """Print the mean over the held-out images and its standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="the name or the folder of a model")
    parser.add_argument("data", help="the folder with the files of its data set")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    try:
        folder = locate(args.model)
        config = read_config(folder)
        task = DensityTask(load_flow(folder).to(args.device).eval())
        if not {"data", "validation"} <= config.keys():
            parser.error(f"{args.model} does not say which images were held out from it")
        data = load(config["data"]["name"], "train", args.data)
    except (ValueError, RuntimeError, OSError) as error:
        parser.error(str(error))
    places = held_out(len(data), config["validation"])[1]
    bits = []
    with torch.no_grad(), true_float32():
        facts = machine(torch.device(args.device))
        for some in places.split(50):
            seed, own = stream(0, "validation noise"), some.to(args.device)
            batch = Batch(data.images[some].to(args.device), None, own, seed, 0)
            bits.append(task.measure(batch)["bpd"].double().cpu())
    all_bits = torch.cat(bits)
    figures = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "machine": facts,
        "weights_sha256": sha256(folder / WEIGHTS),
        "images": len(all_bits),
        "bits_per_dim": float(all_bits.mean()),
        "standard_error": float(all_bits.std() / len(all_bits) ** 0.5),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
