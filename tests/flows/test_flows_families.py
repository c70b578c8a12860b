"""One network of each family: exact where it says so, inverted, and trained by the benchmark."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from mintnet import MintLayer
from mintnet.bench.properties import jacobian
from mintnet.models.families import FAMILIES, family_net, parameter_count
from registry import away_from_zero

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_what_it_says(name: str) -> None:
    torch.manual_seed(0)
    net = away_from_zero(family_net(name, (1, 8, 8), depth=1, width=8), 1, 0.7).double().eval()
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        z, log_det = net(x)
        solution = net.solve(z)
    assert bool(solution.converged.all()), solution.message
    torch.testing.assert_close(solution.value, x, rtol=1e-7, atol=1e-7)
    expected = torch.linalg.slogdet(jacobian(net, x))[1].detach()
    error = float((log_det - expected).abs().max())
    assert (error < 1e-8) is FAMILIES[name].exact, error


def test_parameters_leave_masked_weights_out() -> None:
    layer = MintLayer(3, 4, (5, 5))
    assert parameter_count(layer) == layer.parameter_count()
    assert parameter_count(torch.nn.Linear(3, 2)) == 8


def _script(name: str, monkeypatch: pytest.MonkeyPatch):
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_the_comparison_trains_evaluates_and_goes_on(monkeypatch, tmp_path, capsys) -> None:
    script, out = _script("families", monkeypatch), tmp_path / "rows.json"

    def run(*families: str) -> dict:
        arguments = ["families.py", "digits", "--seconds", "1", "--out", str(out), "--families"]
        monkeypatch.setattr(sys, "argv", [*arguments, *families])
        script.main()
        return json.loads(out.read_text())["rows"]

    first = run("planar")
    rows = run("planar", "nice")
    assert rows["planar"] == first["planar"], "a row that was there is kept"
    for row in rows.values():
        assert 1.5 < row["bits_per_dim"] < 4.0 and row["steps"] > 0
        assert row["test_images"] == 360 and row["samples_certified"] == 64


def test_the_comparison_needs_no_file_and_mixes_no_rows(monkeypatch, tmp_path, capsys) -> None:
    script, out = _script("families", monkeypatch), tmp_path / "rows.json"

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["families.py", *arguments, "--families", "planar"])
        script.main()

    run("digits", "--seconds", "0.5")
    assert "planar" in capsys.readouterr().out
    run("digits", "--seconds", "0.5", "--out", str(out))
    kept = out.read_text()
    for other, words in (
        (("digits", "--seconds", "1"), "--seconds 0.5"),
        (("digits", "--seconds", "0.5", "--seed", "1"), "seed"),
    ):
        with pytest.raises(SystemExit):
            run(*other, "--out", str(out))
        message = capsys.readouterr().err
        assert words in message and "Choose another file" in message
    assert out.read_text() == kept
    with pytest.raises(SystemExit):
        run("mnist", "--data", str(tmp_path))
    assert "Traceback" not in capsys.readouterr().err


def test_steps_that_are_not_finite_move_nothing(monkeypatch) -> None:
    script = _script("families", monkeypatch)
    from mintnet.data import load

    data = load("digits", "train")
    density = script.Density(family_net("planar", (1, 8, 8), 1), data, 0.01)
    step = script.Step(density, data.images, 16, clip=1.0)
    with torch.no_grad():
        density.bits((data.images[:99] + torch.rand(99, 1, 8, 8)) / 17)  # sets normalizations
        list(density.net.parameters())[-1].fill_(float("nan"))
    before = [p.clone() for p in density.net.parameters()]
    step(torch.arange(16), 1e-2)
    assert int(step.skipped) == 1
    for old, new in zip(before, density.net.parameters(), strict=True):
        assert torch.equal(old.nan_to_num(), new.detach().nan_to_num())


@pytest.mark.slow
def test_a_maf_is_compared_with_passes(monkeypatch, tmp_path, capsys) -> None:
    script, out = _script("maf_inverse", monkeypatch), tmp_path / "maf.json"
    arguments = ["--data-set", "digits", "--seconds", "1", "--samples", "4", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["maf_inverse.py", *arguments, "--out", str(out)])
    script.main()
    record = json.loads(out.read_text())
    for kind in ("codes of test images", "noise"):
        assert list(record[kind]) == ["64 passes", "algorithm 1, α = 1", "wavefront", "auto"]
        assert record[kind]["auto"]["certified"] == 4
        assert record[kind]["64 passes"]["end_to_end_residual"] < 1e-4
    assert record["codes of test images"]["auto"]["worst_error"] < 1e-3
