"""`bench train` measures whole steps that do the same work, on a small model."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mintnet.bench import bench_train
from mintnet.bench import train as train_module
from mintnet.bench.machine import commit
from mintnet.bench.memory import PeakMemory, free_memory
from mintnet.bench.steps import Way, make_step, ways_for
from mintnet.bench.textbook import textbook_evaluator, textbook_net
from mintnet.bench.train import moved_from_start, our_batch
from mintnet.bench.work import copy_ceiling, least_traffic, matrix_ceiling, unmasked_flops
from mintnet.cli import main
from mintnet.models import Flow, MintNet, MintNetConfig
from mintnet.training.recipe import Recipe
from registry import tiny_flow

CPU = torch.device("cpu")
WAYS = [
    Way("textbook", "textbook"),
    Way("plain", "plain"),
    Way("two sums", "two-sums"),
    Way("fast", "recorded"),
    Way("fast, bf16", "recorded", "bf16"),
]


def test_the_textbook_version_is_the_same_function() -> None:
    for shape, activation, couplings in (((1, 4, 4), "elu", 0), ((3, 4, 4), "tanh", 5)):
        config = MintNetConfig(shape, (1, 1), (3, 2), activation, couplings=couplings)
        flow = moved_from_start(Flow(config)).double()
        x = torch.randn(4, *shape, dtype=torch.float64)
        for two_sums in (False, True):
            version = textbook_net(flow.net, x, two_sums)
            for found, expected in zip(version, flow.net(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_two_sums_need_no_tensor_larger_than_a_hidden_layer() -> None:
    layer = tiny_flow(4, 0).net.layers()[0]
    x, sizes = torch.randn(2, *layer.event_shape), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = function(*args, **(kwargs or {}))
            sizes.append(out.numel() if isinstance(out, torch.Tensor) else 0)
            return out

    hidden = x.numel() * layer.filters
    for two_sums, most in ((True, hidden), (False, hidden * layer.filters)):
        evaluate = textbook_evaluator(layer, two_sums)
        sizes.clear()
        with Watch(), torch.no_grad():
            evaluate(x)
        assert max(sizes) == most


def test_every_way_does_the_same_step() -> None:
    """The loss of a batch, and again after steps with a rate of learning that shows."""
    flow, images = moved_from_start(tiny_flow(4, 0)), torch.randint(0, 17, (5, 1, 4, 4)).byte()
    losses = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mintnet.bench.steps.RATE", 1e-2)
        for way in WAYS:
            step = make_step(way, flow, images, Recipe(clip=50.0))
            losses[way.name] = [float(step()) for _ in range(3)]
    first = losses["textbook"]
    assert first[0] > first[1] > first[2]
    assert losses["plain"] == pytest.approx(first, rel=1e-5)
    assert losses["two sums"] == pytest.approx(first, rel=1e-5)
    # The recorded step draws its own noise, which moves the mean of five images a little.
    assert losses["fast"] == pytest.approx(first, rel=0.05)
    assert losses["fast, bf16"] == pytest.approx(losses["fast"], rel=0.01)
    assert losses["fast"][0] > losses["fast"][2]


def test_rows_hold_what_they_say() -> None:
    flow = tiny_flow(4, 0)
    before = flow.net.layers()[0].weight1.clone()
    lines: list[str] = []
    ways = WAYS[:4]
    figures = bench_train(flow, CPU, (2, 3, 2), repeats=3, ways=ways, note=lines.append)
    assert torch.equal(flow.net.layers()[0].weight1, before)
    rows = figures["rows"]
    assert [(row["way"], row["batch"]) for row in rows] == [
        (way.name, batch) for batch in (2, 3) for way in ways
    ]
    for row in rows:
        seconds = row["milliseconds"] / 1e3
        assert row["steps"] == 3 and row["images_per_second"] == pytest.approx(
            row["batch"] / seconds
        )
        low, high = row["milliseconds_quartiles"]
        assert low <= row["milliseconds"] <= high
        flops = row["batch"] * figures["gflop_an_image"] / 1e3 / seconds
        assert row["tflops_unmasked"] == pytest.approx(flops)
        ceiling = figures["ceilings"]["matrix_tflops"][row["precision"]]
        assert row["share_of_matrix_product"] == pytest.approx(flops / ceiling)
        assert row["share_of_copy"] > 0 and row["first_step_seconds"] > 0
    for row in rows:
        textbook = [other for other in rows if other["kind"] in ("textbook", "two-sums")]
        same = [other for other in textbook if other["batch"] == row["batch"]]
        best = max(other["images_per_second"] for other in same)
        assert row["speedup"] == row["images_per_second"] / best
    assert "textbook, batch 2, 4 × 4" in lines
    assert not torch.backends.cudnn.benchmark


@pytest.mark.slow
def test_the_sweep_covers_its_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module, "SWEEP_SIZES", (4, 8))
    monkeypatch.setattr(train_module, "SWEEP_BATCHES", {"cpu": (1, 2)})
    figures = bench_train(tiny_flow(4, 0), CPU, (1,), repeats=1, ways=WAYS[:1], sweep=True)
    assert figures["sweep_way"] == "ours"
    assert [(row["size"], row["batch"]) for row in figures["over_batch"]] == [(4, 1), (4, 2)]
    assert [(row["size"], row["batch"]) for row in figures["over_size"]] == [(4, 2), (8, 2)]


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if PeakMemory(CPU).bytes() is None:
        pytest.skip("the memory of a process is not known here")
    monkeypatch.setattr(train_module, "free_memory", lambda device: 2**20)
    monkeypatch.setattr(train_module.PeakMemory, "bytes", lambda self: 2**20)
    figures = bench_train(tiny_flow(4, 0), CPU, (1, 3), repeats=1, ways=WAYS[:2])
    fits, too_large = figures["rows"][:2], figures["rows"][2:]
    assert all("failure" not in row for row in fits)
    # One image takes all there is, and two no more than that: so three fit as well.
    assert all("failure" not in row for row in too_large)
    sizes = iter([2**20, 2**21] * 2)
    monkeypatch.setattr(train_module.PeakMemory, "bytes", lambda self: next(sizes))
    rows = bench_train(tiny_flow(4, 0), CPU, (3,), repeats=1, ways=WAYS[:2])["rows"]
    assert all(row["failure"].startswith("does not fit in memory") for row in rows)
    assert all("milliseconds" not in row and "speedup" not in row for row in rows)


def test_running_out_of_memory_is_a_row_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(train_module, "_does_not_fit", lambda *arguments: None)
    monkeypatch.setattr(train_module, "make_step", refuse)
    (row,) = bench_train(tiny_flow(4, 0), CPU, (2,), repeats=1, ways=WAYS[:1])["rows"]
    assert row["failure"] == "does not fit in memory"


def test_a_compiler_that_fails_is_a_row_and_other_faults_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("no such\ncompiler")

    monkeypatch.setattr(train_module, "make_step", fail)
    ways = [Way("compiled", "compiled")]
    (row,) = bench_train(tiny_flow(4, 0), CPU, (2,), repeats=1, ways=ways)["rows"]
    assert row["failure"] == "could not be compiled: no such compiler"
    with pytest.raises(RuntimeError, match="no such"):
        bench_train(tiny_flow(4, 0), CPU, (1,), repeats=1, ways=WAYS[1:2])


def test_the_work_is_counted_without_masked_weights() -> None:
    net = tiny_flow(4, 0).net
    by_hand = 0
    for layer in net.layers():
        c, height, width = layer.event_shape
        k, pairs = layer.filters, layer.channels * (layer.channels - 1) // 2
        entries = 9 * pairs + 5 * c  # of Eq. 7: all taps of earlier channels, 5 of its own
        by_hand += 6 * height * width * entries * (k + k * k + k)
    assert unmasked_flops(net) == by_hand
    # 4 layers: two of 1 × 4 × 4 with K = 3, two of 4 × 2 × 2 with K = 1, both of 16 pixels in all
    hidden, weights = (
        2 * 16 * (2 * 3 + 1) + 2 * 16 * (2 + 1),
        sum(p.numel() for p in net.parameters()),
    )
    assert least_traffic(net, 4, 2) == 5 * 4 * hidden * 2 + 10 * 4 * weights
    coupled = MintNet(replace(net.config, couplings=5))  # twice 2 → 5 → 5 → 4 channels of 2 × 2
    own = 2 * (9 * 2 * 5 + 5 * 5 + 9 * 5 * 4)
    assert unmasked_flops(coupled) == by_hand + 6 * 4 * own
    extra = least_traffic(coupled, 1, 2) - least_traffic(coupled, 0, 2)
    assert extra == 5 * 2 * (hidden + 2 * 4 * (5 + 5 + 4))
    assert matrix_ceiling(CPU, torch.float32, repeats=1) > 1e8 and copy_ceiling(CPU, 1) > 1e8


def test_batches_and_ways_follow_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    mnist, cifar10 = Flow.preset("mnist"), Flow.preset("cifar10")
    assert (our_batch(mnist, CPU), our_batch(cifar10, CPU)) == (8, 2)
    assert our_batch(mnist, torch.device("cuda")) == 512
    names = [way.name for way in ways_for(mnist, CPU)]
    monkeypatch.setattr("mintnet.bench.steps.has_compiler", lambda: False)
    assert [way.name for way in ways_for(mnist, CPU)] == names[:3]
    assert names[:3] == ["textbook", "textbook, two sums", "ours"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    assert [(way.kind, way.precision) for way in ways_for(mnist, torch.device("cuda"))] == [
        ("textbook", "float32"),
        ("textbook", "tf32"),
        ("two-sums", "tf32"),
        ("plain", "float32"),
        ("plain", "tf32"),
        ("recorded", "bf16"),
    ]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    old = ways_for(mnist, torch.device("cuda"))[-1]  # as in training, without bf16
    assert (old.kind, old.precision) == ("recorded", "float32")


def test_without_triton_nothing_is_compiled_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("mintnet.training.fast.HAS_TRITON", False)
    (way,) = [w for w in ways_for(tiny_flow(4, 0), torch.device("cuda")) if w.kind == "recorded"]
    assert way.name == "ours, fast, not compiled, bf16"
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    seen = []

    def stop(*arguments: object) -> None:
        raise InterruptedError

    def path(dtype: torch.dtype, compiled: bool) -> None:
        seen.append(compiled)
        stop()

    monkeypatch.setattr("mintnet.training.task.FastPath", path)
    with pytest.raises(InterruptedError):
        make_step(way, tiny_flow(4, 0), torch.zeros(2, 1, 4, 4).byte(), Recipe())
    assert seen == [False]


def test_memory_is_seen() -> None:
    peak = PeakMemory(CPU)
    if peak.bytes() is None:
        pytest.skip("the memory of a process is not known here")
    torch.ones(2**25).sum()
    assert 2**26 < peak.bytes() < 2**30
    assert free_memory(CPU) > 0


def test_only_ways_that_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "f.json"
    arguments = ["bench", "train", "digits", "--batches", "2", "--device", "cpu", "--repeats", "1"]
    more = ["--no-compile", "--out", str(tmp_path / "p.svg"), "--json", str(figures)]
    main([*arguments, *more, "--ways", "ours"])
    content = json.loads(figures.read_text())
    assert [row["way"] for row in content["rows"]] == ["ours"]
    assert content["machine"]["threads"] == 1  # as digits are trained
    with pytest.raises(SystemExit):
        main([*arguments, *more, "--ways", "fastest"])
    assert "no way here has 'fastest' in its name" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot, figures = tmp_path / "p.svg", tmp_path / "f.json"
    arguments = ["bench", "train", "digits", "--batches", "2", "4", "--device", "cpu"]
    more = ["--repeats", "2", "--no-compile", "--out", str(plot), "--json", str(figures)]
    main([*arguments, *more])
    out = capsys.readouterr().out
    assert "textbook" in out and "ours" in out and "Random images" in out
    assert plot.read_bytes().startswith(b"<?xml")
    content = json.loads(figures.read_text())
    assert shlex.split(content["command"]) == ["mintnet", *arguments, *more]
    assert content["commit"] == commit() and content["machine"]["device"]
    assert content["preset"] == "digits" and len(content["rows"]) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["abacus"], "unknown preset"),
        (["digits", "--batches", "0"], "at least one image"),
        (["digits", "--repeats", "0"], "at least one step"),
        (["digits", "--device", "abacus"], "unknown device"),
        (["digits", "--time-limit", "-1"], "seconds from 0 on; got -1"),
        (["digits", "--time-limit", "nan"], "seconds from 0 on; got nan"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "train", *arguments])
    assert end.value.code == 1 and words in capsys.readouterr().err
