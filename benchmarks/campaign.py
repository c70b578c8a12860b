"""Campaigns against the promises of the library: random cases until the time is up.

    python benchmarks/campaign.py inverse --seconds 60 --seed 0

Case k of a seed is always the same. The report, ``campaigns/inverse-0/report.json``, is written
every few seconds, and a later call with the same seed goes on where it ended. Each failure is a
file beside it that ``--replay FILE`` runs again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
NAMES = ("inverse", "proofs", "likelihood", "files", "kills", "gpu")
SAVE_EVERY = 10.0
"""Seconds between reports."""


def module(name: str) -> ModuleType:
    """The module of a campaign, found beside this file."""
    sys.path[:0] = [str(p) for p in (HERE, HERE.parent / "tests") if str(p) not in sys.path]
    return importlib.import_module(f"campaigns.{name}")


def run_case(campaign: ModuleType, case: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    """What a case counted, and what was wrong; an exception is wrong as well."""
    try:
        counts, failures = campaign.run(case)
    except Exception:
        return {}, [traceback.format_exc(limit=-6)]
    return dict(counts), list(failures)


def run_campaign(
    name: str, seconds: float, seed: int, out: Path, cases: float = math.inf
) -> dict[str, Any]:
    """Run cases for that long, or up to that many, from where the report in ``out`` ends."""
    from mintnet.analysis.origin import commit, machine
    from mintnet.files import write_bytes

    campaign, path = module(name), out / "report.json"
    done = json.loads(path.read_text()) if path.exists() else {}
    report: dict[str, Any] = {
        "campaign": name,
        "seed": seed,
        "command": f"python benchmarks/campaign.py {name} --seconds {seconds:g} --seed {seed}",
        "commit": commit(),
        "machine": machine(torch.device("cuda" if name == "gpu" else "cpu")),
        "cases": done.get("cases", 0),
        "failures": done.get("failures", 0),
        "seconds": done.get("seconds", 0.0),
        "counts": done.get("counts", {}),
    }
    counts = Counter(report["counts"])
    begin = saved = time.monotonic()
    before = report["seconds"]

    def save() -> None:
        report["seconds"] = round(before + time.monotonic() - begin, 1)
        report["counts"] = dict(sorted(counts.items()))
        write_bytes(path, json.dumps(report, indent=1).encode() + b"\n")

    try:
        while time.monotonic() - begin < seconds and report["cases"] < cases:
            number = report["cases"]
            case = campaign.draw(random.Random(f"{name} {seed} {number}"))
            counted, failures = run_case(campaign, case)
            if failures:
                facts = {"campaign": name, "seed": seed, "number": number, "case": case}
                text = json.dumps({**facts, "failures": failures}, indent=1)
                write_bytes(out / f"failure-{number}.json", text.encode())
            counts.update(counted)
            report["cases"], report["failures"] = number + 1, report["failures"] + bool(failures)
            if time.monotonic() - saved > SAVE_EVERY:
                saved = time.monotonic()
                save()
    finally:
        save()
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random cases against a promise of the library.")
    parser.add_argument("campaign", choices=NAMES)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="which cases")
    parser.add_argument("--out", type=Path, help="where the report and the failures go")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one saved failure again")
    options = parser.parse_args(arguments)
    missing = getattr(module(options.campaign), "missing", lambda: None)()
    if missing:
        print(missing)
        return 1
    if options.replay:
        case = json.loads(options.replay.read_text())["case"]
        counts, failures = run_case(module(options.campaign), case)
        print(json.dumps({"counts": counts, "failures": failures}, indent=1))
        return bool(failures)
    out = options.out or Path("campaigns", f"{options.campaign}-{options.seed}")
    report = run_campaign(options.campaign, options.seconds, options.seed, out)
    words = ", ".join(f"{value} {name}" for name, value in report["counts"].items())
    print(f"{report['cases']} cases ({words}), {report['failures']} with failures; {out}")
    return bool(report["failures"])


if __name__ == "__main__":
    sys.exit(main())
