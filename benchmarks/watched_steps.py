"""How many steps Algorithm 1 needs in each layer of a trained net: α = 1, α = 2/3, and watched.

Also blocks of channels in turn, where all layers have several; G steps of one of G blocks count as
one there. Seconds are of the processor, for other work may be going on.

    python benchmarks/watched_steps.py MODEL [-n 16] [--channels 3] [--out FILE]

A step counts until all samples are certified; a layer that does not get there in 120 counts 121.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

import torch

from mintnet import FixedPoint, InTurn
from mintnet.bench.invert import layer_targets
from mintnet.bench.machine import commit, machine
from mintnet.models.locate import load_flow

WAYS = {
    "α = 1": FixedPoint(),
    "α = 2/3": FixedPoint(step=2 / 3),
    "watched": FixedPoint(watch=True),
    "in turn": InTurn(),
}


@torch.no_grad()
def main() -> None:
    """A line for each way, and all steps of each layer in a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=16)
    parser.add_argument("--channels", type=int, help="only layers of so many channels")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    try:
        flow = load_flow(args.model)
    except ValueError as error:
        parser.error(str(error))
    layers = layer_targets(flow, flow.sample_latents(args.n, seed=0))
    layers = [(layer, z) for layer, z in layers if args.channels in (None, layer.channels)]
    rows = {}
    for name, solver in WAYS.items():
        if name == "in turn" and any(layer.channels == 1 for layer, _ in layers):
            continue
        found, seconds = [], []
        for layer, z in layers:
            layer.solve(z[:1], FixedPoint(max_steps=1))  # once, for what is set up
            begin = time.process_time()
            found.append(layer.solve(z, solver))
            seconds.append(round(time.process_time() - begin, 3))
        steps = [int(s.steps.max()) if bool(s.converged.all()) else 121 for s in found]
        failed = steps.count(121)
        rows[name] = {
            "steps": steps,
            "sum": sum(steps),
            "failed_layers": failed,
            "seconds": seconds,
        }
        print(
            f"{name:8} {sum(steps):5} steps, {sum(seconds):6.1f} s, "
            f"{failed} of {len(steps)} layers fail",
            flush=True,
        )
    if args.out is not None:
        figures = {
            "command": shlex.join(["python", *sys.argv]),
            "commit": commit(),
            "machine": machine(torch.device("cpu")),
            "samples": args.n,
            "layers": [layer.name for layer, _ in layers],
            "ways": rows,
        }
        args.out.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
