"""Invert a trained MAF of D = 784: Algorithm 1 and Auto against D passes.

    python benchmarks/maf_inverse.py --data data --seconds 120 --out results/maf-inverse-cpu.json

Five MAF layers of masked dense networks are trained on MNIST (the network and the data path of
benchmarks/families.py), then the same codes are decoded in four ways: D passes of
x ← (z − m(x)) / σ(x), as other libraries do, which are exact in exact arithmetic; Algorithm 1 with
α = 1 and stopping; the wavefront; and Auto, which is timed from its third call on, when it knows
the layers. Codes are those of test images, whose answer is known, and noise, which is what
sampling inverts. Evaluations are the most that any sample took in any layer, the one of the
certificate included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path

import torch
from families import train
from torch import Tensor

from mintnet import MAF, Auto, Chain, FixedPoint, Wavefront
from mintnet.bench.machine import machine
from mintnet.data import load
from mintnet.precision import true_float32
from mintnet.solvers import Solution


class Passes:
    """The inverse of a chain with D passes for each MAF layer, and no certificate."""

    def __init__(self, net: Chain) -> None:
        self.net = net

    def __call__(self, z: Tensor) -> Tensor:
        for part in reversed(self.net.leaves()):
            if not isinstance(part, MAF):
                z = part.solve(z).value
                continue
            evaluate, x = part.evaluator(), torch.zeros_like(z)
            for _ in range(z.shape[1]):
                y, scale = evaluate(x)
                x = x + (z - y) / scale
            z = x
        return z


def seconds_of(run, repeats: int, device: torch.device) -> tuple[object, float]:
    """The last result and the least wall time."""
    best, found = float("inf"), None
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        found = run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return found, best


def facts_of(solution: Solution) -> dict:
    layers = [part for part in solution.parts if part.name.startswith("MAF")]
    return {
        "certified": int(solution.converged.sum()),
        "evaluations_most": max(int(part.evaluations.max()) for part in layers),
        "evaluations_by_layer": [
            round(float(part.evaluations.double().mean()), 1) for part in layers
        ],
        "worst_layer_residual": max(float(part.residual.max()) for part in layers),
        "end_to_end_residual": float(solution.residual.max()),
    }


@torch.no_grad()
def compare(net: Chain, z: Tensor, x: Tensor | None, repeats: int) -> dict:
    """All ways on the same z; errors against x where it is known."""
    rows, size = {}, z[0].numel()
    ways = {
        "algorithm 1, α = 1": FixedPoint(step=1.0, max_steps=size + 20),
        "wavefront": Wavefront(),
        "auto": Auto(),
    }
    with true_float32():
        value, taken = seconds_of(lambda: Passes(net)(z), 1, z.device)
        gap = (net.transform(value)[0] - z).abs().flatten(1).amax(1) / z.abs().flatten(1).amax(1)
    rows[f"{size} passes"] = {
        "seconds": taken,
        "certified": None,
        "evaluations_most": size,
        "end_to_end_residual": float(gap.max()),
    }
    values = {f"{size} passes": value}
    for name, solver in ways.items():
        first = net.solve(z, solver)
        for _ in range(2 if name == "auto" else 0):
            net.solve(z, solver)
        solution, taken = seconds_of(lambda s=solver: net.solve(z, s), repeats, z.device)
        rows[name] = {"seconds": taken, **facts_of(solution)}
        if name == "auto":
            rows[name]["evaluations_most_at_the_first_call"] = facts_of(first)["evaluations_most"]
        values[name] = solution.value
    if x is not None:
        for name, value in values.items():
            rows[name]["worst_error"] = float((value - x).abs().max())
    for row in rows.values():
        row["faster_than_passes"] = rows[f"{size} passes"]["seconds"] / row["seconds"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--data-set", default="mnist", choices=["mnist", "digits"])
    parser.add_argument("--seconds", type=float, default=120.0, help="of training")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.rate, args.clip, args.eager, args.verbose = None, 1.0, False, True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    try:
        training, test = (load(args.data_set, split, args.data) for split in ("train", "test"))
    except ValueError as error:
        parser.error(str(error))
    density, facts = train("maf", training, args)
    net = density.net.eval()
    pixels = (test.images[: args.samples].to(args.device).float() + 0.5) / test.levels
    with torch.no_grad(), true_float32():
        x = density.logit.transform(pixels)[0]
        codes, bits = net.transform(x)[0], density.bits(pixels).mean()
    noise = torch.randn(codes.shape, generator=torch.Generator().manual_seed(1)).to(args.device)
    commit = ["git", "rev-parse", "--short", "HEAD"]
    record = {
        "command": f"python benchmarks/maf_inverse.py --seconds {args.seconds:g}",
        "commit": subprocess.run(commit, capture_output=True, text=True).stdout.strip() or None,
        "machine": machine(torch.device(args.device)),
        "dimensions": codes[0].numel(),
        "samples": args.samples,
        "bits_per_dim_of_the_samples": float(bits),
        "training": facts,
        "codes of test images": compare(net, codes, x, args.repeats),
        "noise": compare(net, noise, None, args.repeats),
    }
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    for kind in ("codes of test images", "noise"):
        print(f"{kind}, {args.samples} samples, {float(bits):.2f} bits per dimension")
        for name, row in record[kind].items():
            print(
                f"  {name:20} {row['seconds']:7.2f} s ({row['faster_than_passes']:.1f} times), "
                f"at most {row['evaluations_most']} evaluations a layer, certified "
                f"{row['certified']}, end to end {row['end_to_end_residual']:.1e}"
            )


if __name__ == "__main__":
    main()
