"""Benchmarks measure what they say, on small models, and leave settings as they were."""

import json
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from mintnet import Flow, MintNet, Squeeze
from mintnet.analysis import origin
from mintnet.cli import app, main
from mintnet.data import load
from mintnet.models import MintNetConfig
from mintnet.models.base import parameter_count
from registry import away_from_zero, jacobian, normal_mint, tiny_flow

CPU = torch.device("cpu")
NAMES = "families", "invert", "networks", "properties", "sample", "train"
families, invert, networks, properties, sample, train = map(app.benchmarks, NAMES)


@pytest.fixture
def model(tmp_path: Path) -> str:
    tiny_flow(4, 0).save(tmp_path / "model", preset="tiny", data="digits")
    return str(tmp_path / "model")


@pytest.fixture
def tf32():
    """TF32 is on, as many programs set it; gives a function that says whether it still is."""
    settings = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [setting.allow_tf32 for setting in settings]
    for setting in settings:
        setting.allow_tf32 = True
    yield lambda: all(setting.allow_tf32 for setting in settings)
    for setting, value in zip(settings, before, strict=True):
        setting.allow_tf32 = value


def test_the_package_has_one_name_in_a_wheel_and_in_a_clone(tmp_path, monkeypatch) -> None:
    assert train.__name__ == "mintnet.benchmarks.train"
    assert Path(train.__file__).parent.name == "benchmarks"
    monkeypatch.setattr(app, "PACKAGE", "mintnet.nowhere")
    monkeypatch.setattr(app, "__file__", str(tmp_path / "a" / "b" / "c" / "app.py"))
    with pytest.raises(ValueError, match="this installation has no benchmarks"):
        app.benchmarks("train")


def test_seconds_of_each_call_and_equal_bits(tf32) -> None:
    lines: list[str] = []
    found = sample.bench_sample(tiny_flow(4, 0), 3, calls=3, compare=True, note=lines.append)
    assert found["calls"][:2] == [found["first_seconds"], found["second_seconds"]]
    assert len(found["calls"]) == 3 and found["identical"] and lines[0].startswith("call 1: ")
    later = found["calls"][1:]
    assert found["best_seconds"] == min(later) and found["seconds"] == sum(later) / 2
    assert found["slowest_over_fastest"] == max(found["calls"]) / min(found["calls"]) >= 1
    assert found["verified"] == 3 and found["worst_residual"] < 1e-3 and found["evaluations"] > 4
    other = found["algorithm_1"]
    assert found["speedup"] == other["seconds"] / found["seconds"]
    assert other["steps"] == 120 and other["verified"] == 3
    assert other["median_residual"] <= other["worst_residual"] < 1e-5
    assert found["machine"]["tf32"] is False and tf32()


def test_bits_that_differ_and_steps_that_do_not_arrive_are_seen(monkeypatch, capsys) -> None:
    flow, real, seeds = tiny_flow(4, 0), Flow.sample, iter([0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(Flow, "sample", lambda self, n, seed: real(self, n, seed=next(seeds)))
        found = sample.bench_sample(flow, 4, calls=2)
    assert found["identical"] is False and "speedup" not in found
    sample.print_sample(print, "tiny", found)
    assert "the bits DIFFER" in capsys.readouterr().out
    with torch.no_grad():
        for layer in flow.net.layers():
            layer.weight2.mul_(30.0)
    found = sample.bench_sample(flow, 2, calls=1, compare=True, step=1e-3)
    assert found["algorithm_1"]["verified"] == 0 and found["verified"] == 2
    assert found["second_seconds"] is None


def test_every_solver_gets_the_same_targets(tf32) -> None:
    found = invert.bench_invert(tiny_flow(4, 0), 3, repeats=1)
    assert list(found["ways"]) == ["algorithm-1", "newton", "wavefront", "auto"]
    assert found["ways"]["algorithm-1"]["evaluations"] >= 4 * 121
    for name in ("wavefront", "auto"):
        row = found["ways"][name]
        assert row["not_verified"] == 0 and row["end_to_end_verified"] == 3
        assert row["worst_residual"] <= 5e-6 and row["end_to_end_residual"] <= 1e-3
        assert row["seconds"] == sum(row["layer_seconds"])
        assert row["speedup"] == found["ways"]["algorithm-1"]["seconds"] / row["seconds"]
    assert found["layers"].count("MintLayer") == 4
    assert found["machine"]["tf32"] is False and tf32()


def test_a_training_step_is_timed_and_the_model_left_alone(tf32) -> None:
    torch.manual_seed(0)
    flow = Flow.preset("digits")
    before = {name: value.clone() for name, value in flow.state_dict().items()}
    found = train.bench_train(flow, "digits", CPU, (2, 3, 2), repeats=3)
    assert [row["batch"] for row in found["rows"]] == [2, 3]
    for row in found["rows"]:
        assert row["loss"] > 0 and row["steps"] == 3
        seconds = row["milliseconds"] / 1e3
        assert row["images_per_second"] == pytest.approx(row["batch"] / seconds)
        low, high = row["milliseconds_quartiles"]
        assert low <= row["milliseconds"] <= high
        flops = row["batch"] * found["gflop_an_image"] / 1e3 / seconds
        assert row["tflops_unmasked"] == pytest.approx(flops)
    assert found["matrix_product_tflops"] > 1e-4
    for name, value in flow.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert tf32() and not torch.backends.cudnn.benchmark


def test_a_batch_that_does_not_fit_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "training_step", Mock(side_effect=torch.OutOfMemoryError("no")))
    (row,) = train.bench_train(tiny_flow(4, 0), "digits", CPU, (2,))["rows"]
    assert row == {"way": train.AS_TRAINED, "batch": 2, "failure": "does not fit in memory"}
    net = MintNet(MintNetConfig((1, 4, 4), pairs=(1,), filters=(2,)))
    assert 3 * train.unmasked_flops(net, (1, 4, 4)) == 7680  # without masked weights
    assert parameter_count(torch.nn.Linear(3, 2)) == 8


def test_properties_are_those_of_the_paper_but_for_glow(capsys, tmp_path: Path) -> None:
    main(["bench", "properties", "--json", str(tmp_path / "table.json")])
    assert "differs: Glow" in capsys.readouterr().out
    found = json.loads((tmp_path / "table.json").read_text())
    assert found["differences"] == ["Glow, analytic inverse: yes here, no in the paper"]
    table = found["models"]
    assert "64 at 8 × 8" in table["MAF"]["analytic inverse"]["evidence"]
    page = (Path(__file__).parents[2] / "docs" / "field.md").read_text().replace("**", "")
    for name, row in table.items():
        words = " | ".join("yes" if entry["holds"] else "no" for entry in row.values())
        assert f"| {name} | {words} |" in page, name


def test_checks_can_fail() -> None:
    """Each check on something that lacks the property, made by hand."""
    squeeze, wrong = (Squeeze(2, (1, 4, 4)).double() for _ in range(2))
    wrong.transform = lambda x: (2 * squeeze.transform(x)[0], x.new_zeros(len(x)))
    assert properties.exact_likelihood(squeeze).holds
    assert not properties.exact_likelihood(wrong).holds
    assert not properties.non_volume_preserving(squeeze).holds
    small, large = (normal_mint(1, 2, (size, size), std=1.0).double() for size in (4, 8))
    assert not properties.analytic_inverse(small, large).holds


def test_families_are_trained_evaluated_and_sampled(capsys, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    words = ["digits", "--seconds", "1", "--families", "maf", "nice", "--json", str(out)]
    main(["bench", "families", *words])
    rows = json.loads(out.read_text())["rows"]
    assert list(rows) == ["maf", "nice"] and "MAF" in capsys.readouterr().out
    for row in rows.values():
        assert 1.5 < row["bits_per_dim"] < 4.0 and row["steps"] > 0
        assert row["test_images"] == 360 and row["samples_verified"] == 64


def test_a_step_of_a_family_that_is_not_finite_moves_nothing() -> None:
    data = load("digits", "train")
    density = families.Density(networks.family_net("nice", (1, 8, 8), 1), data, 0.01)
    with torch.no_grad():
        density.bits((data.images[:99] + torch.rand(99, 1, 8, 8)) / 17)  # sets normalizations
        list(density.net.parameters())[-1].fill_(float("nan"))
    step = families.Step(density, data.images, 16)
    before = [p.clone() for p in density.net.parameters()]
    step(torch.arange(16), 1e-2)
    assert int(step.skipped) == 1
    for old, new in zip(before, density.net.parameters(), strict=True):
        assert torch.equal(old.nan_to_num(), new.detach().nan_to_num())


def test_commands_print_and_write_figures_with_their_origin(model, tmp_path, capsys) -> None:
    device = ["--device", "cpu", "--json", str(tmp_path / "f.json")]
    for words, printed in (
        (["sample", model, "-n", "3", "--calls", "3", "--compare"], "all calls gave the same bits"),
        (["invert", model, "-n", "2", "--ways", "auto", "wavefront"], "wavefront"),
        (["train", "digits", "--batch-size", "2", "--repeats", "1"], train.AS_TRAINED),
    ):
        main(["bench", *words, *device])
        assert printed in capsys.readouterr().out
        content = json.loads((tmp_path / "f.json").read_text())
        assert shlex.split(content["command"]) == ["mintnet", "bench", *words, *device]
        assert content["commit"] == origin.commit() and content["machine"]["device"]
    assert content["machine"]["threads"] == 1  # as digits are trained


def test_the_commit_is_of_this_checkout_or_the_version_stands_in(tmp_path, monkeypatch) -> None:
    file = tmp_path / "origin.py"
    monkeypatch.setattr(origin, "__file__", str(file))
    file.write_text("")
    assert origin.commit() == f"mintnet {version('mintnet')}"

    def git(*words: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        return subprocess.check_output(["git", *who, "-C", str(tmp_path), *words], text=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "a repository of someone else")
    assert origin.commit() == f"mintnet {version('mintnet')}"
    git("add", "origin.py")
    git("commit", "-q", "-m", "ours")
    assert len(origin.commit()) == 12 and git("rev-parse", "HEAD").startswith(origin.commit())
    file.write_text("changed")
    assert origin.commit().endswith("-dirty")


@pytest.mark.parametrize("name", networks.FAMILIES)
def test_a_family_is_what_it_says(name: str) -> None:
    torch.manual_seed(0)
    net = networks.family_net(name, (1, 8, 8), depth=1, width=8)
    net = away_from_zero(net, 1, 0.7).double().eval()
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        z, log_det = net(x)
        solution = net.solve(z)
    assert bool(solution.converged.all()), solution.message
    torch.testing.assert_close(solution.value, x, rtol=1e-7, atol=1e-7)
    expected = torch.linalg.slogdet(jacobian(lambda x: net(x)[0], x))[1].detach()
    error = float((log_det - expected).abs().max())
    assert (error < 1e-8) is networks.FAMILIES[name].exact, error


def test_accelerated_samples_are_compared_and_checked(zuko) -> None:
    accelerate = app.benchmarks("accelerate")
    torch.manual_seed(0)
    data = load("digits", "train")
    flow = accelerate.zuko_flow("MAF", 16, 16)
    assert accelerate.train(flow, accelerate.Pixels(data.images, data.levels, 4), steps=3) < 3
    found = accelerate.measure(flow, 16, compared=4, count=20)
    assert found["largest_difference"] < 1e-4 and 2 < found["passes_per_layer"] < 16
    assert [found[f"samples_{name}"] for name in ("checked", "refused", "wrong")] == [20, 0, 0]
    assert found["worst_residual_float64"] < 1e-4
