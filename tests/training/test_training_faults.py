"""Everything that may be wrong with a run folder, and steps that are not finite."""

import errno
import json
import math
import os

import pytest
import torch
from training_processes import before_step, contents, same_state, state, stopped_at

from mintnet import files
from mintnet.models import Flow
from mintnet.training import RunError, RunFolder
from mintnet.training.step import DensityTask


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "holds a run"),
        ({"resume": True, "batch_size": 17}, "begun with batch size 16, not 17"),
        ({"resume": True, "seed": 5}, "begun with seed 0, not 5"),
        ({"resume": True, "pairs": (2, 2)}, r"begun with pairs \(1, 1\)"),
    ],
)
def test_a_folder_that_is_taken(tmp_path, tiny, options, message):
    tiny(tmp_path / "run")
    before = contents(tmp_path)
    with pytest.raises(RunError, match=message) as caught:
        tiny(tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else(tmp_path, tiny, resume):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError):
        tiny(tmp_path, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match="is a file"):
        tiny(tmp_path / "thesis.tex", resume=resume)


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "other"])
def test_a_damaged_checkpoint(tmp_path, tiny, damage):
    tiny(tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.pt"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        weights = state(tmp_path / "run")["model"]["net.chain.parts.0.parts.0.weight1"]
        data[data.index(weights.numpy().tobytes())] ^= 1
    else:
        data = {"truncated": data[: len(data) // 2], "empty": b"", "other": b"nonsense"}[damage]
    path.write_bytes(data)
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"checkpoint.pt is damaged .*--run, --init") as caught:
        tiny(tmp_path / "run", resume=True)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "other", [{"filters": (4, 1)}, {"pairs": (1,), "filters": (3,)}, {"muon": True}]
)
def test_a_checkpoint_of_another_network(tmp_path, tiny, other):
    tiny(tmp_path / "run", checkpoint_every=2, max_steps=3)
    tiny(tmp_path / "other", **other)
    (tmp_path / "other" / "checkpoint.pt").replace(tmp_path / "run" / "checkpoint.pt")
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"checkpoint.pt is not of the network") as caught:
        tiny(tmp_path / "run", resume=True, max_steps=20)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_one_process_at_a_time(tmp_path, tiny):
    folder = RunFolder(tmp_path / "deep" / "run")
    words = rf"in use by process {os.getpid()} on .*--run"
    with folder.locked():
        for resume in (False, True):
            with pytest.raises(RunError, match=words):
                tiny(folder.path, resume=resume)
        assert [path.name for path in folder.path.iterdir()] == [".lock"]
    assert not folder.path.parent.exists()  # nothing has come into it
    folder.path.mkdir(parents=True)
    (folder.path / ".lock").write_text("process 1 on another machine")  # as a kill leaves it
    assert tiny(folder.path)["finished"]
    assert not (folder.path / ".lock").exists()


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path, tiny, monkeypatch):
    checkpoint = tmp_path / "run" / "checkpoint.pt"
    sync, kept = os.fsync, []

    def full(handle):
        if checkpoint.exists():
            kept.append(checkpoint.read_bytes())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunError, match=r"No space left on device.*--resume") as caught:
        tiny(tmp_path / "run")
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert checkpoint.read_bytes() == kept[0]
    assert not list((tmp_path / "run").glob(".*"))
    tiny(tmp_path / "other")
    assert tiny(tmp_path / "run", resume=True)["resumed_from"] == 5
    assert same_state(tmp_path / "run", tmp_path / "other")


def outliers(monkeypatch, steps, factor=math.inf):
    """Multiply the loss of some training steps."""
    measure, at = DensityTask.measure, [0]

    def far_out(self, batch):
        found = measure(self, batch)
        wrong = self.model.training and at[0] in steps
        return {**found, "loss": found["loss"] * factor} if wrong else found

    monkeypatch.setattr(DensityTask, "measure", far_out)
    before_step(monkeypatch, lambda _, number: at.__setitem__(0, number))


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_step_that_is_not_finite_is_left_out(tmp_path, tiny, monkeypatch, ema):
    """Also of a run that is resumed in between, with the same weights in the end."""
    weights = {}

    def keep(step, number):
        weights[number] = [tensor.clone() for tensor in step.state()]

    outliers(monkeypatch, (7, 8))
    before_step(monkeypatch, keep)
    options = {"max_steps": 30, "ema": ema}
    figures = tiny(tmp_path / "whole", **options)
    assert (figures["steps"], figures["steps_left_out"]) == (30, 2)
    assert math.isfinite(figures["train"]["bpd"])
    for a, b, c in zip(weights[7], weights[8], weights[9], strict=True):
        assert torch.equal(a, b) and torch.equal(b, c)
    rows = [r for r in RunFolder(tmp_path / "whole").metrics() if r["kind"] == "left out"]
    assert [(row["step"], row["in_a_row"]) for row in rows] == [(8, 1), (9, 2)]
    stopped_at(monkeypatch, tiny, tmp_path / "run", 12, **options)
    rest = tiny(tmp_path / "run", resume=True, **options)
    assert (rest["steps_left_out"], rest["resumed_from"]) == (2, 10)
    assert same_state(tmp_path / "whole", tmp_path / "run")


def test_steps_that_are_never_finite_stop_the_run(tmp_path, tiny, monkeypatch):
    outliers(monkeypatch, range(5, 50), math.nan)
    with pytest.raises(RunError, match=r"the loss is nan.* at step 11, so the run stops"):
        tiny(tmp_path / "run", max_steps=50)


@pytest.mark.parametrize("checkpoint_every", [0, 5])
def test_weights_that_are_not_finite_are_not_written(tmp_path, tiny, monkeypatch, checkpoint_every):
    run, saved = tmp_path / "run", {}

    def poison(step, number):
        if number == 6:
            saved.update(weights(run))
            with torch.no_grad():
                step.parameters[0].fill_(math.nan)

    before_step(monkeypatch, poison)
    with pytest.raises(RunError, match=r"weights are no longer finite at step 7, so the run stops"):
        tiny(run, validation=0.0, checkpoint_every=checkpoint_every)
    assert weights(run) == saved
    assert len(saved) == (3 if checkpoint_every else 0)  # last/ with two files, and checkpoint.pt
    if checkpoint_every:
        assert state(run)["step"] == 5
        assert all(p.isfinite().all() for p in Flow.load(run).parameters())


def weights(run):
    return {p: p.read_bytes() for p in [*run.glob("last/*"), *run.glob("checkpoint.pt")]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "run.json: Expecting property name"),
        ('{"format": 1}', "run.json: format: expected 2; got 1"),
        ('{"format": 2, "recipe": {"a": 1}}', "run.json: data: expected an object"),
        ({"recipe": {"preset": "mnist"}}, "is a run of preset mnist, not digits"),
        ({"data": {"checksum": 7}}, "other images"),
    ],
)
def test_a_run_json_that_does_not_fit(tmp_path, tiny, content, message):
    tiny(tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    if isinstance(content, dict):
        saved = json.loads(path.read_text())
        for name, values in content.items():
            saved[name] |= values
        content = json.dumps(saved)
    path.write_text(content)
    with pytest.raises(RunError, match=message):
        tiny(tmp_path / "run", resume=True)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, tiny):
    with pytest.raises(RunError, match=r"so the run stops; the weights saved last[^\n]*$"):
        tiny(tmp_path / "run", learning_rate=1e30)
    assert all(p.isfinite().all() for p in Flow.load(tmp_path / "run").parameters())
