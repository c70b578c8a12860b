"""Which optimizer, are signs to be kept, do couplings help? A small model of pieces of CIFAR-10.

    python benchmarks/optimizers.py DATA [--muon] [--free] [--couplings 64] --out FILE.json

DATA holds CIFAR-10. Pieces of 16 × 16 from anywhere in 18,000 training images, mirrored every
second time, are learnt for some steps; the averaged weights are evaluated on 1,500 pieces of
2,000 other training images. --free lets own taps cross 0, see `mintnet.training.signs`. Takes
minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import time
from contextlib import nullcontext

import torch
from torch import Tensor

from mintnet.bench.machine import commit, machine
from mintnet.data import load
from mintnet.models import Flow, MintNetConfig
from mintnet.training.ema import MovingAverage
from mintnet.training.muon import Muon, kernels_of
from mintnet.training.recipe import Recipe
from mintnet.training.schedule import learning_rate
from mintnet.training.signs import kept_signs
from mintnet.training.task import REACH
from mintnet.training.usual import UsualLoss, tempered

SIZE, TRAINING, HELD = 16, 18_000, 2_000


def pieces(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Squares of SIZE pixels from anywhere, every second one mirrored."""
    which = torch.randint(len(images), (count,), generator=generator).tolist()
    places = torch.randint(images.shape[-1] + 1 - SIZE, (count, 2), generator=generator).tolist()
    cut = [
        images[n, :, r : r + SIZE, c : c + SIZE] for n, (r, c) in zip(which, places, strict=True)
    ]
    mirrored = torch.rand(count, generator=generator) < 0.5
    found = torch.stack(cut)
    return torch.where(mirrored[:, None, None, None], found.flip(-1), found)


def main() -> None:
    """Train, print the curve, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--muon", action="store_true")
    parser.add_argument("--free", action="store_true", help="signs are not kept")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pairs", type=int, nargs=3, default=[2, 2, 1])
    parser.add_argument("--filters", type=int, nargs=3, default=[12, 4, 2])
    parser.add_argument("--couplings", type=int, default=0, help="their width; 0: none")
    parser.add_argument("--unmasked-step", type=float, default=1.0, help="see `Recipe`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.unmasked_step != 1 and not (args.muon and args.couplings):
        parser.error("--unmasked-step is for the couplings of --muon --couplings WIDTH")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    order = torch.Generator().manual_seed(args.seed)
    images = load("cifar10", "train", args.data).images[: TRAINING + HELD]
    held = pieces(images[TRAINING:], 1500, torch.Generator().manual_seed(5))
    shape = (3, SIZE, SIZE)
    config = MintNetConfig(shape, tuple(args.pairs), tuple(args.filters), couplings=args.couplings)
    flow, reach = Flow(config, 0.05), REACH * math.prod(shape) * math.log(2)
    options = {"lr": args.lr, "eps": 1e-5, "amsgrad": True}
    optimizer: torch.optim.Optimizer
    if args.muon:
        optimizer = Muon(*kernels_of(flow), unmasked=args.unmasked_step, **options)
    else:
        optimizer = torch.optim.Adam(flow.parameters(), **options)
    recipe = Recipe(learning_rate=args.lr, schedule="linear", hold=0.35, warmup=50)
    average, usual, left_out, curve = MovingAverage(flow, 0.99), UsualLoss(), 0, []
    begin = time.time()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step, args.steps)
        batch = pieces(images[:TRAINING], args.batch, order)
        losses, ceiling = -flow.log_prob(batch, seed=step + 1), usual.ceiling(reach)
        optimizer.zero_grad()
        tempered(losses, ceiling, reach).mean().backward()
        loss = losses.detach().clamp(max=ceiling).mean()
        norm = torch.nn.utils.clip_grad_norm_(flow.parameters(), 500.0)
        if not (bool(norm.isfinite()) and float(loss) <= usual.bound):
            left_out += 1
            continue
        usual.add(float(loss))
        with torch.no_grad(), nullcontext() if args.free else kept_signs(flow):
            optimizer.step()
        average.update(flow, step)
        if (step + 1) % 200 == 0 or step + 1 == args.steps:
            with torch.no_grad(), average.applied(flow):
                bits = [flow.bits_per_dim(part, seed=0).sum() for part in held.split(250)]
            curve.append([step + 1, float(torch.stack(bits).sum()) / len(held)])
            print(f"step {step + 1}: {curve[-1][1]:.4f} held out", flush=True)
    figures = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "held_out_bits_per_dim": curve,
        "steps_left_out": left_out,
        "seconds": time.time() - begin,
        "machine": machine(torch.device("cpu")),
    }
    with open(args.out, "w") as file:
        json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
