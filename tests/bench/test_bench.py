"""Benchmarks measure what they say, on a small model."""

import json
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from mintnet.bench import bench_growth, bench_invert, bench_properties
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
        "i-ResNet fixed point, 100 steps",
        "one coordinate at a time",
    ]
    assert ways["algorithm 1, 120 steps"]["evaluations"] == 4 * 121
    assert ways["i-ResNet fixed point, 100 steps"]["evaluations"] == 4 * 101
    assert ways["one coordinate at a time"]["evaluations"] == 4 * 16
    assert ways["one coordinate at a time"]["extrapolated"]
    for name in ("wavefront", "auto"):
        assert ways[name]["not_certified"] == 0
        assert ways[name]["worst_residual"] <= 5e-6
        assert ways[name]["end_to_end_residual"] <= 1e-3
    assert len(figures["layers"]) == 4
    assert figures["auto_over_faster_of_two"] > 0


def test_quick_and_plain(tmp_path: Path) -> None:
    _flow().save(tmp_path / "model")
    told = tmp_path / "figures.json"
    options = ["--plain", "--quick", "-n", "2", "--repeats", "1", "--step", "0.5"]
    place = ["--out", str(tmp_path / "plot.png"), "--json", str(told), "--device", "cpu"]
    main(["bench", "invert", str(tmp_path / "model"), *options, *place])
    figures = json.loads(told.read_text())
    assert list(figures["ways"]) == ["algorithm 1, 120 steps", "auto"]
    assert figures["ways"]["auto"]["not_certified"] == 0
    assert figures["auto_over_faster_of_two"] is None
    assert figures["hand_written_kernels"] is False


def test_a_bad_step_is_refused_before_anything_takes_time() -> None:
    told: list[str] = []
    with pytest.raises(ValueError, match=r"got 3\.5"):
        bench_invert(_flow(), samples=3, step=3.5, note=told.append)
    assert told == []


def test_residuals_that_were_not_measured_are_left_out(tmp_path: Path, capsys) -> None:
    _flow().save(tmp_path / "model")
    place = ["--out", str(tmp_path / "plot.svg"), "--json", str(tmp_path / "figures.json")]
    limits = ["-n", "1", "--step", "0.5", "--repeats", "1", "--time-limit", "0", "--device", "cpu"]
    main(["bench", "invert", str(tmp_path / "model"), *limits, *place])
    ways = json.loads((tmp_path / "figures.json").read_text())["ways"]
    assert ways["one coordinate at a time"]["worst_residual"] is None
    assert "nan" not in capsys.readouterr().out.replace(str(tmp_path), "")
    drawn = (tmp_path / "plot.svg").read_text()
    assert "residual" in drawn and "residual nan" not in drawn


@pytest.mark.slow
def test_what_takes_too_long_is_extrapolated_and_marked() -> None:
    figures = bench_invert(_flow(), samples=3, repeats=1, time_limit=0.0)
    assert all(row["extrapolated"] and row["seconds"] > 0 for row in figures["ways"].values())
    assert figures["ways"]["algorithm 1, 120 steps"]["evaluations"] == 4 * 121
    assert figures["auto_over_faster_of_two"] is None
    in_full = bench_invert(_flow(), samples=3, repeats=1, time_limit=1e6)
    marked = [name for name, row in in_full["ways"].items() if row["extrapolated"]]
    assert marked == ["one coordinate at a time"]


def test_the_fixed_point_of_i_resnet_fails_openly_where_a_layer_is_no_contraction() -> None:
    flow = _flow()
    with torch.no_grad():
        for layer in flow.net.layers():
            layer.raw_t.fill_(4.0)  # slopes near 4: x − (f(x) − z) moves away from the root
    row = bench_invert(flow, samples=2, repeats=1, step=0.5)["ways"][
        "i-ResNet fixed point, 100 steps"
    ]
    assert row["not_certified"] == 2 * 4 and row["worst_residual"] == float("inf")


def test_properties_are_those_of_the_paper_but_for_glow() -> None:
    found = bench_properties()
    assert found["differences"] == ["Glow, analytic inverse: yes here, no in the paper"]
    table = found["models"]
    assert not table["IAF"]["analytic forward"]["holds"]
    assert table["IAF"]["analytic inverse"]["holds"]
    assert not table["MAF"]["analytic inverse"]["holds"]
    assert "64 at 8 × 8" in table["MAF"]["analytic inverse"]["evidence"]
    assert table["NICE with its scaling layer"]["non-volume preserving"]["holds"]
    page = (Path(__file__).parents[2] / "docs" / "field.md").read_text().replace("**", "")
    for name, row in table.items():
        words = " | ".join("yes" if entry["holds"] else "no" for entry in row.values())
        assert f"| {name} | {words} |" in page, name


def test_checks_can_fail() -> None:
    """Each check on something that lacks the property, made by hand."""
    from mintnet import MintLayer, Squeeze
    from mintnet.bench import properties

    class Wrong(type(Squeeze(2, (1, 4, 4)))):
        def transform(self, x):
            return 2 * super().transform(x)[0], x.new_zeros(len(x))

    squeeze = Squeeze(2, (1, 4, 4)).double()
    assert properties.exact_likelihood(squeeze).holds
    assert not properties.exact_likelihood(Wrong(2, (1, 4, 4)).double()).holds
    assert not properties.non_volume_preserving(squeeze).holds
    small, large = (MintLayer(1, 2, (size, size)).double() for size in (4, 8))
    assert not properties.analytic_inverse(small, large).holds


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["bench", "properties", "--json", str(tmp_path / "table.json")])
    assert "differs: Glow" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "table.json").read_text())["models"]) >= 12


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
