"""The step: captured it does what it does eagerly, and it can be captured; the fast path."""

from __future__ import annotations

import math

import pytest
import torch

from mintnet import graphs
from mintnet.data import load
from mintnet.models import Flow, MintNetConfig
from mintnet.training import Devices, Recipe, train
from mintnet.training import devices as training_devices
from mintnet.training import step as training_step
from mintnet.training.build import build_task
from mintnet.training.devices import chosen_precision, fast_path
from mintnet.training.step import DensityTask, FastPath, Step

OPTIONS = {
    "pairs": (1, 1),
    "filters": (3, 1),
    "batch_size": 32,
    "max_steps": 4,
    "ema": 0.5,
    "clip": 50.0,
    "augmentation": "crop-flip-cutout",
    "sample_every": 0,
}
DATA = load("digits", "train")
INDEX = torch.arange(32)


def make_step(preset: str = "digits", captured: bool = False, **given) -> Step:
    recipe = Recipe.of(preset, **{**OPTIONS, **given})
    task = build_task(recipe, DATA)
    task.fast = FastPath(dtype=torch.float32, compiled=False)
    task.model.train()
    return Step(task, recipe, 32, captured=captured)


def take(step: Step, number: int = 0, **given):
    labels = None if step.task.figures == ("bpd",) else DATA.labels[INDEX]
    named = {"epoch": 0, "learning_rate": 1e-3, "number": number, **given}
    return step(DATA.images[INDEX], labels, INDEX, **named)


@pytest.mark.parametrize("preset", ["digits", "digits-classifier"])
def test_captured_it_trains_as_it_does_eagerly(monkeypatch, preset) -> None:
    """As `graphs.capture` does it: runs before the capture, then everything put back."""
    eager, captured = (make_step(preset, c) for c in (False, True))

    def capture(run, device, state):
        before = [(tensor, tensor.clone()) for tensor in state()]
        known = {tensor.data_ptr() for tensor, _ in before}
        for _ in range(3):
            run()
        for tensor, value in before:
            tensor.copy_(value)
        for tensor in state():
            if tensor.data_ptr() not in known:
                tensor.zero_()
        return run

    monkeypatch.setattr(training_step, "capture", capture)
    for number in range(3):
        a, b = (take(step, number, epoch=number) for step in (eager, captured))
        assert a == b and a.finite and not a.left_out and a.norm > 0
    for one, two in zip(eager.state(), captured.state(), strict=True):
        assert torch.equal(one, two)
    assert graphs.capture(eager.run, torch.device("cpu"), eager.state) == eager.run


@pytest.mark.parametrize("preset", ["digits", "digits-classifier"])
def test_the_step_can_be_captured(capturable, preset) -> None:
    step = make_step(preset)
    take(step)
    with capturable():
        *_, norm, bad, finite, _ = step.run().unbind()
    assert float(norm) > 0 and float(finite) == 1 and float(bad) == 0


@pytest.mark.parametrize(
    ("preset", "far"),
    [("digits", 1.0), *(("digits-classifier", x) for x in (math.inf, math.nan, 1.0))],
)
def test_a_step_that_is_left_out_changes_nothing(monkeypatch, preset, far) -> None:
    """Weights, statistics of batch normalization, moments, their counters and EMA weights."""
    step = make_step(preset)
    take(step)
    before = [tensor.clone() for tensor in step.state()]
    task, model, measure = step.task, step.task.model, step.task.measure
    if preset != "digits":
        prepared = model.prepared
        monkeypatch.setattr(model, "prepared", lambda images: prepared(images) * far)

    def measured(batch):
        found = measure(batch)  # if far is 1, activations are finite and the loss alone is not
        return {**found, "loss": found["loss"] * math.inf}

    monkeypatch.setattr(task, "measure", measured)
    outcome = take(step, 1)
    assert outcome.left_out and outcome.finite and not math.isfinite(outcome.means["loss"])
    for tensor, value in zip(step.state(), before, strict=True):
        assert torch.equal(tensor, value)


def test_weights_that_are_not_finite_are_told() -> None:
    step = make_step()
    with torch.no_grad():
        step.parameters[0].fill_(math.inf)
    outcome = take(step)
    assert outcome.left_out and not outcome.finite


def test_ema_weights_by_hand() -> None:
    step = make_step(ema=0.9)
    expected = step.parameters[1].detach().clone()
    for number in range(4):
        take(step, number)
        decay = min(0.9, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * step.parameters[1].detach()
    kept = list(step.averaged.model.parameters())[1]
    torch.testing.assert_close(kept, expected)
    assert not kept.requires_grad and step.task.model is not step.averaged.model


def test_ema_weights_come_with_statistics() -> None:
    step = make_step("digits-classifier", ema=0.5)
    take(step, 100)
    own, kept = (task.model.chain.parts[0] for task in (step.task, step.averaged))
    torch.testing.assert_close(kept.mean, own.mean / 2)  # it was 0


def test_a_run_by_the_fast_path(tmp_path, monkeypatch) -> None:
    """The same weights as without it; not compiled here, which takes minutes."""
    found = []
    for name, path in (("plain", None), ("fast", FastPath(dtype=torch.float32, compiled=False))):
        monkeypatch.setattr(training_devices, "fast_path", lambda *_, path=path: (path, ""))
        train("digits", tmp_path / name, **OPTIONS)
        found.append(Flow.load(tmp_path / name).state_dict())
    for name, tensor in found[1].items():
        assert torch.allclose(tensor, found[0][name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize(
    ("kind", "precision", "capability", "plain", "words"),
    [
        ("elu", "bf16", (9, 0), False, "fast path in bf16"),
        ("elu", "float64", (9, 0), False, "no float64"),
        ("elu", "bf16", (9, 0), True, "as asked"),
        ("tanh", "bf16", (9, 0), False, "elu"),
        ("elu", "bf16", (7, 5), False, "no bf16"),
    ],
)
def test_the_path_on_a_gpu(monkeypatch, kind, precision, capability, plain, words) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr("mintnet.training.devices.has_triton", lambda: True)
    assert chosen_precision("auto", Devices()) == ("bf16" if capability >= (8, 0) else "float32")
    flow = Flow(MintNetConfig((1, 4, 4), pairs=(1,), filters=(2,), activation=kind))
    path, reason = fast_path(DensityTask(flow), precision, Devices(), plain)
    assert words in reason
    assert (path is not None) == words.startswith("fast path")


@pytest.mark.parametrize(
    ("triton", "compilers", "words"),
    [(False, "gcc", "Triton is not installed"), (True, "", "no C compiler"), (True, "clang", "")],
)
def test_what_cannot_be_compiled_on_a_gpu_is_not(monkeypatch, triton, compilers, words) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("mintnet.training.devices.has_triton", lambda: triton)
    monkeypatch.setattr("shutil.which", lambda name: name if name in compilers.split() else None)
    monkeypatch.delenv("CC", raising=False)
    path, reason = fast_path(DensityTask(Flow.preset("digits")), "float32", Devices())
    assert path == FastPath(dtype=torch.float32, compiled=not words)
    assert words in reason and ("not compiled" in reason) == bool(words)
