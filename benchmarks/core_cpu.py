"""Forward and backward of the mnist and cifar10 nets on the CPU, against textbook versions.

    python benchmarks/core_cpu.py [--json results/core/forward-backward-cpu.json]

Each row runs in a process of its own: the median of five steps after one to warm up, and the peak
of its memory above what it held before the first step. The versions take turns, so that a busy
machine slows all of them. The textbook version forms all K × K products of Eq. 3 in one tensor; the
one with two sums takes its sums in turn.
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
VERSIONS = ("mintnet", "textbook", "two sums")


def measure(preset: str, batch: int, version: str) -> dict[str, float]:
    """Seconds a step and MiB of one version, in this process."""
    import torch

    from mintnet import MintNet
    from mintnet.bench.textbook import textbook_net

    torch.manual_seed(0)
    net = MintNet.preset(preset)
    x = torch.randn(batch, *net.config.shape)

    def step() -> None:
        z, log_det = net(x) if version == "mintnet" else textbook_net(net, x, version == "two sums")
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
        taken = {version: [] for version in VERSIONS}
        for _ in range(2):
            for version, found in taken.items():
                found.append(in_a_process(preset, batch, version))
        best = {v: min(found, key=lambda r: r["seconds"]) for v, found in taken.items()}
        ours, other, lean = (best[version] for version in VERSIONS)
        row = {
            "net": preset,
            "batch": batch,
            **best,
            "faster": other["seconds"] / ours["seconds"],
            "memory": ours["peak_mib"] / other["peak_mib"],
            "faster_than_two_sums": lean["seconds"] / ours["seconds"],
            "memory_of_two_sums": ours["peak_mib"] / lean["peak_mib"],
        }
        rows.append(row)
        print(
            f"{preset}, batch {batch}: {ours['seconds']:.2f} s and {ours['peak_mib']:.0f} MiB, "
            f"textbook {other['seconds']:.2f} s and {other['peak_mib']:.0f} MiB: "
            f"{row['faster']:.1f} times faster, {row['memory']:.2f} of the memory; "
            f"two sums {lean['seconds']:.2f} s and {lean['peak_mib']:.0f} MiB: "
            f"{row['faster_than_two_sums']:.1f} times, {row['memory_of_two_sums']:.2f}",
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
