"""Forward and backward of the mnist and cifar10 nets on the CPU, against the textbook version.

    python benchmarks/core_cpu.py [--json results/core/forward-backward-cpu.json]

Each row runs in a process of its own: the median of five steps after one to warm up, and the peak
of its memory above what it held before the first step. The two versions take turns, so that a
busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROWS = [("mnist", 8), ("cifar10", 2)]
REPEATS = 5


def measure(preset: str, batch: int, version: str) -> dict[str, float]:
    """Seconds a step and MiB of one version, in this process."""
    import torch

    from mintnet import MintNet
    from mintnet.bench.textbook import textbook_net

    torch.manual_seed(0)
    net = MintNet.preset(preset)
    x = torch.randn(batch, *net.config.shape)

    def step() -> None:
        z, log_det = net(x) if version == "mintnet" else textbook_net(net, x)
        (z.square().sum() / 2 - log_det.sum()).backward()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": median(times), "peak_mib": peak / 1024}


def in_a_process(preset: str, batch: int, version: str) -> dict[str, float]:
    """`measure` in a fresh process."""
    command = [sys.executable, __file__, "--one", preset, str(batch), version]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the table, and write it as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]), args.one[2])))
        return
    import torch

    from mintnet.bench.machine import commit, machine

    rows = []
    for preset, batch in ROWS:
        both = {"mintnet": [], "textbook": []}
        for _ in range(2):
            for version, found in both.items():
                found.append(in_a_process(preset, batch, version))
        best = {v: min(found, key=lambda r: r["seconds"]) for v, found in both.items()}
        ours, other = best["mintnet"], best["textbook"]
        row = {
            "net": preset,
            "batch": batch,
            **best,
            "faster": other["seconds"] / ours["seconds"],
            "memory": ours["peak_mib"] / other["peak_mib"],
        }
        rows.append(row)
        print(
            f"{preset}, batch {batch}: {ours['seconds']:.2f} s and {ours['peak_mib']:.0f} MiB, "
            f"textbook {other['seconds']:.2f} s and {other['peak_mib']:.0f} MiB: "
            f"{row['faster']:.1f} times faster, {row['memory']:.2f} of the memory",
            flush=True,
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {
            "command": "python benchmarks/core_cpu.py",
            "commit": commit(),
            "machine": machine(torch.device("cpu")),
            "rows": rows,
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
