"""How the cost of the wavefront grows with the size of the image and with the batch."""

from __future__ import annotations

from typing import Any

import torch

from mintnet.bench.invert import Note
from mintnet.bench.machine import machine, seconds
from mintnet.bijections import MintLayer
from mintnet.solvers import Wavefront

SIZES = (8, 16, 32, 64, 128)
BATCHES = (1, 4, 16, 64, 256)


@torch.no_grad()
def bench_growth(
    filters: int = 16,
    device: torch.device | str = "cpu",
    repeats: int = 3,
    note: Note = lambda line: None,
) -> dict[str, Any]:
    """Seconds of the wavefront on one Mint layer over sizes (batch 8) and batches (16 × 16)."""
    device = torch.device(device)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def cost(size: int, batch: int) -> dict[str, Any]:
        torch.manual_seed(0)
        layer = MintLayer(1, filters, (size, size)).to(device)
        for weight in (layer.weight1, layer.weight2, layer.weight3):
            torch.nn.init.normal_(weight, std=0.1)
        z = layer(torch.randn(batch, 1, size, size, device=device))[0]
        worst = float(layer.solve(z, Wavefront()).residual.max())
        taken = seconds(lambda: layer.solve(z, Wavefront()), device, repeats)
        note(f"{size} × {size}, batch {batch}: {taken:.3f} s, residual {worst:.1e}")
        return {"size": size, "batch": batch, "seconds": taken, "worst_residual": worst}

    return {
        "filters": filters,
        "machine": machine(device),
        "over_size": [cost(size, 8) for size in SIZES],
        "over_batch": [cost(16, batch) for batch in BATCHES],
    }
