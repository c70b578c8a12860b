"""Is the fast path of training what the plain path is? Values, log-determinants, all gradients.

    python benchmarks/fast_path.py --device cuda --out fast-path-gpu.json

Whole networks with their weights moved away from 0, compiled where there is a GPU, on random
images, are compared with the plain path in true float32: the fast path in float32 without TF32,
and in bf16, and for scale the plain path with TF32. Errors are norms of differences over norms,
the worst of all tensors for gradients. Ends with an error if float32 is off by more than 1e-3.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mintnet.bench.machine import commit, machine
from mintnet.bench.train import moved_from_start
from mintnet.models import Flow
from mintnet.models.fast import fast_transform
from mintnet.precision import true_float32
from mintnet.training.devices import float32_math

FAR = 1e-3
"""Errors of the fast path in float32 from which on it is wrong."""
Transform = Callable[[Tensor], tuple[Tensor, Tensor]]


def both_passes(flow: Flow, transform: Transform, x: Tensor) -> list[Tensor]:
    """z, log |det J|, and the gradients of the mean log-density: of x and of all weights."""
    x = x.detach().requires_grad_()
    z, log_det = transform(x)
    density = (log_det - z.square().flatten(1).sum(1) / 2).mean()
    inputs = [x, *flow.net.parameters()]
    gradients = torch.autograd.grad(density, inputs)
    return [tensor.detach().double() for tensor in (z, log_det, *gradients)]


def errors(found: Iterable[Tensor], true: Iterable[Tensor]) -> dict[str, float]:
    """Relative errors of z, of log-determinants and of the worst gradient."""
    apart = [float((a - b).norm() / b.norm()) for a, b in zip(found, true, strict=True)]
    return {"z": apart[0], "log_det": apart[1], "worst_gradient": max(apart[2:])}


def compared(preset: str, batch: int, device: torch.device, couplings: int = 0) -> dict[str, Any]:
    """Errors of each way for one network."""
    torch.manual_seed(0)
    flow = Flow.preset(preset)
    flow = moved_from_start(flow.like(replace(flow.net.config, couplings=couplings))).to(device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *flow.shape, generator=generator).to(device)
    gpu = device.type == "cuda"

    def fast(dtype: torch.dtype) -> Transform:
        return lambda x: fast_transform(flow.net, x, dtype, compiled=gpu)

    with true_float32():
        true = both_passes(flow, flow.net.transform, x)
        found = {"fast, float32": errors(both_passes(flow, fast(torch.float32), x), true)}
    with float32_math(tf32=True):
        found["fast, bf16"] = errors(both_passes(flow, fast(torch.bfloat16), x), true)
        if gpu:
            found["plain, TF32"] = errors(both_passes(flow, flow.net.transform, x), true)
    return {"preset": preset, "batch": batch, "couplings": couplings, "errors": found}


def main() -> None:
    """Compare, print, write, and fail if the fast path is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--presets", nargs="+", default=["mnist", "cifar10"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--couplings", type=int, default=0, help="their width; 0: none")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = []
    for preset in options.presets:
        rows.append(compared(preset, options.batch, device, options.couplings))
        for way, apart in rows[-1]["errors"].items():
            said = ", ".join(f"{name} {error:.1e}" for name, error in apart.items())
            print(f"{preset}, {way}: {said}", flush=True)
    command = shlex.join(["python", "benchmarks/fast_path.py", *sys.argv[1:]])
    record = {"command": command, "commit": commit(), "machine": machine(device), "rows": rows}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    worst = max(max(row["errors"]["fast, float32"].values()) for row in rows)
    if worst > FAR:
        sys.exit(f"the fast path in float32 is off by {worst:.1e}")


if __name__ == "__main__":
    main()
