"""Would it pay to skip the blocks of W² that the mask clears?

    python benchmarks/block_convolutions.py [--device cuda --batch 512] --out blocks.json

The hidden channels are ordered by the channel that they are copies of, so that W² is triangular in
blocks. Of each layer of `cifar10`, both passes of W² are timed by themselves: as one convolution,
and as two or more, each with the inputs that its outputs may see (on a GPU compiled, in bf16, with
cuts at multiples of 64); and both passes of the layer as it is, launched kernel by kernel, which a
recorded step is not. The share of the work that is left says what blocks could bring at most.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet import MintLayer
from mintnet.bench.machine import commit, machine, timings
from mintnet.kernels.mint import compiled, mint_layer, prepared_layers

SHAPES = [(3, 32, 85), (12, 16, 21), (48, 8, 5)]  # channels, height and width, filters


def cuts(width: int, filters: int, parts: int, unit: int) -> list[tuple[slice, slice]]:
    """Rows of a lower W² in some parts, and the columns that they see, in whole units."""
    size = -(-width // (parts * unit)) * unit
    found = []
    for first in range(0, width, size):
        last = min(first + size, width)
        seen = -(-last // filters) * filters
        found.append((slice(first, last), slice(0, min(-(-seen // unit) * unit, width))))
    return found


def both_passes(function: Callable[[], Tensor], inputs: list[Tensor]) -> Callable[[], object]:
    """A function and its gradients."""

    def step() -> object:
        out = function()
        return torch.autograd.grad(out, inputs, torch.ones_like(out))

    return step


def row(channels: int, side: int, filters: int, batch: int, device: torch.device) -> dict[str, Any]:
    """Milliseconds of a layer, and of its W² in one convolution and in several."""
    gpu = device.type == "cuda"
    torch.manual_seed(0)
    layer = MintLayer(channels, filters, (side, side)).to(device)
    x = torch.randn(batch, channels, side, side, device=device, requires_grad=True)

    def whole() -> Tensor:
        if gpu:
            [weights] = prepared_layers([layer], torch.bfloat16)
            y, log_det = compiled(mint_layer)(x, weights, filters, 3, False)
        else:
            y, log_det = layer(x)
        return y.sum() + log_det.sum()

    w = prepared_layers([layer], torch.bfloat16)[0].second if gpu else layer.weights()[1]
    w = w.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    h = torch.randn(batch, len(w), side, side, device=device, dtype=w.dtype)
    h = h.contiguous(memory_format=torch.channels_last).requires_grad_()
    counts = (1, 2, 4) if gpu else (1, 2, 3)
    pieces = {parts: cuts(len(w), filters, parts, 64 if gpu else filters) for parts in counts}

    def in_blocks(parts: int) -> Tensor:
        ends = [F.conv2d(h[:, seen], w[rows, seen], padding=1) for rows, seen in pieces[parts]]
        return torch.cat(ends, 1) if parts > 1 else ends[0]

    blocks = torch.compile(in_blocks, dynamic=False) if gpu else in_blocks

    steps = {"layer": both_passes(whole, [x, *layer.parameters()])}
    for parts in pieces:
        torch.testing.assert_close(in_blocks(parts), in_blocks(1), rtol=2e-2, atol=1e-2)
        steps[f"W² in {parts}"] = both_passes(partial(blocks, parts), [h, w])
    for step in steps.values():
        step()
    times = {name: 1e3 * median(found) for name, found in timings(steps, device, 9).items()}
    saved = {
        parts: (times["W² in 1"] - times[f"W² in {parts}"]) / times["layer"] for parts in counts[1:]
    }
    return {
        "layer": layer.name,
        "batch": batch,
        "milliseconds": times,
        "share_of_work": {
            parts: sum(len(w[rows]) * len(w[seen]) for rows, seen in cut) / len(w) ** 2
            for parts, cut in pieces.items()
        },
        "saved_of_the_layer": saved,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device, rows = torch.device(options.device), []
    for shape in SHAPES:
        rows.append(row(*shape, options.batch, device))
        print(rows[-1], flush=True)
    command = f"python benchmarks/block_convolutions.py --device {device} --batch {options.batch}"
    record = {"command": command, "commit": commit(), "machine": machine(device), "rows": rows}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
