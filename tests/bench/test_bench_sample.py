"""`bench sample` measures certified samples and the published algorithm on the same noise."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mintnet.bench import bench_sample
from mintnet.bench import sample as sample_module
from mintnet.bench.invert import tuned_step
from mintnet.bench.machine import commit
from mintnet.bench.sample import LEARNING, published_inverse, resized
from mintnet.bench.train import moved_from_start
from mintnet.bench.work import evaluation_flops
from mintnet.cli import main
from mintnet.models import Flow, MintNetConfig
from mintnet.solvers import FixedPoint, InversionError
from registry import tiny_flow


def test_the_published_algorithm_inverts_where_it_converges() -> None:
    flow = tiny_flow(4, 0).double()
    z = flow.sample_latents(3, seed=1)
    x = published_inverse(flow, z, step=0.8)
    torch.testing.assert_close(x, flow.net.inverse(z), rtol=1e-8, atol=1e-8)
    assert not torch.allclose(published_inverse(flow, z, 0.8, iterations=1), x, atol=1e-3)


def test_rows_hold_what_they_say() -> None:
    figures = bench_sample(tiny_flow(4, 0), (2, 5, 2), repeats=3)
    assert figures["tuned_step"] in [1 / (1 + n / 2) for n in range(9)]
    assert [row["count"] for row in figures["rows"]] == [2, 5]
    for row in figures["rows"]:
        low, high = row["seconds_range"]
        assert 0 < low <= row["seconds"] <= high and row["first_seconds"] > 0
        assert len(row["learning_seconds"]) == LEARNING
        assert row["certified"] == row["count"] and row["worst_residual"] < 1e-3
        other = row["published"]
        assert other["evaluations"] == 4 * 120
        assert other["median_residual"] <= other["worst_residual"]
        assert row["speedup"] == other["seconds"] / row["seconds"]
        for part in (row, other):
            assert part["images_per_second"] == pytest.approx(row["count"] / part["seconds"])
            share = part["tflops_unmasked"] / figures["matrix_tflops"]
            assert part["share_of_matrix_product"] == pytest.approx(share)
            assert 0 < part["share_of_copy"] < 2
        work = sum(map(evaluation_flops, tiny_flow(4, 0).net.layers()))
        expected = 120 * work * row["count"] / other["seconds"] / 1e12
        assert other["tflops_unmasked"] == pytest.approx(expected)
    assert figures["over_size"] == []


def test_the_same_weights_on_other_sizes() -> None:
    flow = tiny_flow(4, 0)
    figures = bench_sample(flow, (1,), repeats=1, published=False, sizes=(4, 8))
    assert [row["size"] for row in figures["over_size"]] == [4, 8]
    assert all(row["certified"] == row["count"] for row in figures["over_size"])
    for ours, other in zip(flow.net.layers(), resized(flow, 8).net.layers(), strict=True):
        assert torch.equal(ours.weight2, other.weight2) and ours.t.shape != other.t.shape
        assert torch.equal(ours.raw_t, other.raw_t[:, ::2, ::2])


def test_resizing_to_the_same_size_changes_nothing() -> None:
    config = MintNetConfig((1, 8, 8), pairs=(1, 1), filters=(3, 1), couplings=4)
    flow = moved_from_start(Flow(config, centre=-1.0)).eval()
    x = torch.randn(2, 1, 8, 8)
    for found, expected in zip(resized(flow, 8).net(x), flow.net(x), strict=True):
        assert torch.equal(found, expected)
    assert resized(flow, 16).logit.centre == -1.0


def test_the_step_is_tuned_on_both_orderings_by_the_worst_residual() -> None:
    """A layer that wants small steps decides, wherever it stands in its pair."""
    torch.manual_seed(0)

    class Layer:
        def __init__(self, largest: float) -> None:
            self.largest = largest

        def solve(self, z: torch.Tensor, solver: FixedPoint) -> SimpleNamespace:
            good = solver.step <= self.largest
            return SimpleNamespace(residual=torch.full((len(z),), 1e-7 if good else 1e-2))

    for place in range(12):
        layers = [(Layer(0.3 if n == place else 1.0), torch.zeros(4, 1)) for n in range(12)]
        tried = tuned_step(layers, lambda line: None, pairs=6)  # type: ignore[arg-type]
        assert tried <= 0.3
    nowhere = [(Layer(1.0), torch.zeros(4, 1))] * 12
    assert tuned_step(nowhere, lambda line: None) == 1.0  # type: ignore[arg-type]


def test_a_bad_step_shows_in_the_residual() -> None:
    """The published algorithm says nothing when it fails; the benchmark does."""
    (row,) = bench_sample(tiny_flow(4, 0), (2,), repeats=1, step=2.5)["rows"]
    assert row["published"]["worst_residual"] > 1 and row["worst_residual"] < 1e-3


def test_tf32_is_off_while_it_runs_and_as_before_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    inverse = sample_module.published_inverse

    def watched(*arguments, **options):  # type: ignore[no-untyped-def]
        seen.append(torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32)
        return inverse(*arguments, **options)

    monkeypatch.setattr(sample_module, "published_inverse", watched)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    bench_sample(tiny_flow(4, 0), (1,), repeats=1, step=1.0)
    assert seen and not any(seen) and torch.backends.cudnn.allow_tf32


def test_what_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_module, "free_memory", lambda device: 1000)
    (row,) = bench_sample(tiny_flow(4, 0), (3,), repeats=1, step=1.0)["rows"]
    assert row["published"]["failure"].startswith("does not fit in memory")
    assert row["seconds"] > 0 and "speedup" not in row


@pytest.mark.slow
def test_samples_that_cannot_be_certified_are_an_error() -> None:
    flow = tiny_flow(4, 0)
    with torch.no_grad():
        flow.net.layers()[0].raw_t.fill_(float("nan"))
    with pytest.raises(InversionError):
        bench_sample(flow, (2,), repeats=1, step=1.0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_flow(4, 0).save(tmp_path / "model", preset="tiny", data="digits")
    plot, figures = tmp_path / "p.png", tmp_path / "f.json"
    arguments = ["bench", "sample", str(tmp_path / "model"), "-n", "3", "--device", "cpu"]
    more = ["--repeats", "2", "--step", "0.5", "--out", str(plot), "--json", str(figures)]
    main([*arguments, *more])
    out = capsys.readouterr().out
    assert "ours, first" in out and "α = 1/2" in out
    assert plot.read_bytes().startswith(b"\x89PNG")
    content = json.loads(figures.read_text())
    assert shlex.split(content["command"]) == ["mintnet", *arguments, *more]
    assert content["commit"] == commit() and content["machine"]["tf32"] is False
    assert "did not invert" not in out
    main([*arguments, "--repeats", "1", "--step", "2.5", "--out", str(plot)])
    assert "Algorithm 1 did not invert 3 samples" in capsys.readouterr().out


@pytest.mark.slow
def test_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sample_module, "COUNTS", (1, 2))
    tiny_flow(4, 0).save("model", preset="tiny", data="digits")
    words = ["--repeats", "1", "--step", "1", "--sweep", "--device", "cpu", "--json", "f.json"]
    main(["bench", "sample", "model", *words])
    assert [row["count"] for row in json.loads(Path("f.json").read_text())["rows"]] == [1, 2]


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_flow(4, 0).save(tmp_path / "model", preset="tiny", data="digits")
    mistakes = {
        ("-n", "0"): "at least one sample",
        ("--repeats", "0"): "repeats 0",
        ("--step", "0"): "got 0.0",
        ("--step", "nan"): "got nan",
    }
    for words, reason in mistakes.items():
        with pytest.raises(SystemExit) as end:
            main(["bench", "sample", str(tmp_path / "model"), *words])
        assert end.value.code == 1 and reason in capsys.readouterr().err
