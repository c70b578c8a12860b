"""Benchmarks measure what they say, on a small model."""

import json
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from mintnet.bench import bench_growth, bench_invert
from mintnet.bench import growth as growth_module
from mintnet.bench import machine as machine_module
from mintnet.bench.machine import commit
from mintnet.cli import main
from mintnet.models import Flow
from registry import tiny_flow


def _flow() -> Flow:
    return tiny_flow(side=4, seed=0)


def test_every_way_is_measured_on_the_same_targets() -> None:
    figures = bench_invert(_flow(), samples=3, repeats=1)
    ways = figures["ways"]
    assert list(ways) == [
        "algorithm 1, 120 steps",
        "α = 1 with stopping",
        "wavefront",
        "auto",
        "one coordinate at a time",
    ]
    assert ways["algorithm 1, 120 steps"]["evaluations"] == 4 * 121
    assert ways["one coordinate at a time"]["evaluations"] == 4 * 16
    assert ways["one coordinate at a time"]["extrapolated"]
    for name in ("wavefront", "auto"):
        assert ways[name]["not_certified"] == 0
        assert ways[name]["worst_residual"] <= 5e-6
        assert ways[name]["end_to_end_residual"] <= 1e-3
    assert len(figures["layers"]) == 4
    assert figures["auto_over_faster_of_two"] > 0


def test_growth_covers_its_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth_module, "SIZES", (4, 6))
    monkeypatch.setattr(growth_module, "BATCHES", (1, 2))
    figures = bench_growth(filters=2, repeats=1)
    assert [row["size"] for row in figures["over_size"]] == [4, 6]
    assert [row["batch"] for row in figures["over_batch"]] == [1, 2]
    assert all(row["worst_residual"] < 1e-5 for row in figures["over_size"])


def test_the_command_writes_a_plot_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _flow().save(tmp_path / "model", preset="tiny", data="digits")
    plot, figures = tmp_path / "plot.png", tmp_path / "figures.json"
    arguments = ["-n", "2", "--repeats", "1", "--device", "cpu", "--step", "0.5"]
    files = ["--out", str(plot), "--json", str(figures)]
    main(["bench", "invert", str(tmp_path / "model"), *arguments, *files])
    assert "auto" in capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    content = json.loads(figures.read_text())
    assert content["tuned_step"] == 0.5
    typed = shlex.split(content["command"])
    assert typed == ["mintnet", "bench", "invert", str(tmp_path / "model"), *arguments, *files]
    assert content["commit"] == commit() and content["machine"]["device"]


def test_the_commit_is_of_this_checkout_or_the_version_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a repository of someone else, which does not track the package, its commit is not ours."""
    file = tmp_path / "machine.py"
    monkeypatch.setattr(machine_module, "__file__", str(file))
    file.write_text("")
    assert commit() == f"mintnet {version('mintnet')}"
    git = ("git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-C", str(tmp_path))
    try:
        subprocess.run([*git, "init", "-q"], check=True)
    except OSError:
        pytest.skip("there is no git here")
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    assert commit() == f"mintnet {version('mintnet')}"
    subprocess.run([*git, "add", "machine.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert len(commit()) == 12 and head.startswith(commit())
    file.write_text("changed")
    assert commit().endswith("-dirty")
