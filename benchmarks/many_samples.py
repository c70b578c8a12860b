"""Draw many samples and count the inversions that are not certified.

python benchmarks/many_samples.py MODEL [-n 10000] [--batch 500] [--device cuda] [--double]
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time

import torch

from mintnet.bench.machine import commit, machine
from mintnet.models.locate import load_flow
from mintnet.precision import true_float32


def main() -> None:
    """Print failures and the worst residuals, per layer and end to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--double", action="store_true", help="in float64")
    args = parser.parse_args()
    try:
        flow = load_flow(args.model).to(args.device)
    except (ValueError, RuntimeError) as error:
        parser.error(str(error))
    flow = flow.double() if args.double else flow
    failures, layer, end_to_end, begin = 0, 0.0, 0.0, time.time()
    for number, drawn in enumerate(range(0, args.n, args.batch)):
        count = min(args.batch, args.n - drawn)
        solution = flow.solve(flow.sample_latents(count, seed=1000 + number))
        failures += int((~solution.converged).sum())
        layer = max(layer, *(float(part.residual.max()) for part in solution.parts))
        end_to_end = max(end_to_end, float(solution.residual.max()))
    with true_float32():  # in which solvers compute
        facts = machine(torch.device(args.device))
    figures = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "samples": args.n,
        "not_certified": failures,
        "worst_layer_residual": layer,
        "worst_end_to_end_residual": end_to_end,
        "seconds": time.time() - begin,
        "machine": facts,
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
