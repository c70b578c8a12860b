"""Time one recorded training step on a GPU: images/s and peak memory over batch sizes.

    python benchmarks/train_step_gpu.py mnist 256 512

Random images, the step of scripts/train_gpu.py (bf16, compiled, one CUDA graph), ten replays
after three to warm up.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from mintnet.models import Flow

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from train_gpu import Step


def measure(preset: str, batch: int) -> str:
    """One row: milliseconds, images a second, peak memory."""
    flow = Flow.preset(preset).cuda().train()
    images = torch.randint(0, 256, (2000, *flow.shape), dtype=torch.uint8, device="cuda")
    options = argparse.Namespace(batch=batch, flip=False, dtype=torch.bfloat16, clip=1.0, ema=0.999)
    torch.cuda.reset_peak_memory_stats()
    step = Step(flow, images, options)
    step.capture()
    index = torch.randint(0, len(images), (batch,), device="cuda")
    for _ in range(3):
        step(index, 0.0)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        step(index, 0.0)
    torch.cuda.synchronize()
    taken = (time.perf_counter() - begin) / 10
    memory = torch.cuda.max_memory_allocated() / 2**30
    rate = f"{1e3 * taken:.2f} ms, {batch / taken:.0f} images/s"
    return f"{preset}, batch {batch}: {rate}, {memory:.2f} GiB"


def main() -> None:
    """Measure each batch size in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset")
    parser.add_argument("batches", type=int, nargs="+")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a GPU; for a CPU there is mintnet bench train")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    for batch in args.batches:
        print(measure(args.preset, batch), flush=True)


if __name__ == "__main__":
    main()
