"""Kill, resume, and everything that may be wrong with a run folder."""

import errno
import json
import math
import os
import random
import signal
import time

import pytest
import torch
from training_processes import TINY, finish, same_state, start, state

from mintnet import files
from mintnet.data import load
from mintnet.models import Classifier, Flow
from mintnet.models.locate import load_flow
from mintnet.training import RunError, RunFolder, train
from mintnet.training.samples import Sampler
from mintnet.training.step import Step
from mintnet.training.task import ClassificationTask, DensityTask


def test_killed_and_resumed_is_bit_identical(tmp_path):
    options = {**TINY, "preset": "digits", "epochs": 3, "ema": 0.99, "clip": 100.0}
    options["checkpoint_every"] = 7
    undisturbed = start(run=str(tmp_path / "whole"), **options)
    killed = start(run=str(tmp_path / "killed"), **options)
    while not (tmp_path / "killed" / "checkpoint.pt").exists() and killed.poll() is None:
        time.sleep(0.01)
    time.sleep(random.random())
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, killed.communicate()[1]
    step = state(tmp_path / "killed")["step"]
    figures = finish(start(run=str(tmp_path / "killed"), resume=True, **options))
    assert figures["resumed_from"] == step and 0 < step < figures["steps"]
    assert finish(undisturbed)["steps"] == figures["steps"]
    assert same_state(tmp_path / "whole", tmp_path / "killed")
    for name in ("last", "best"):
        whole, again = (tmp_path / run / name / "model.safetensors" for run in ("whole", "killed"))
        assert whole.read_bytes() == again.read_bytes()
    rows = [RunFolder(tmp_path / run).metrics() for run in ("whole", "killed")]
    assert [r["step"] for r in rows[0]] == [r["step"] for r in rows[1]]
    one, two = ([r["bpd"] for r in part if r["kind"] == "validation"] for part in rows)
    assert one == two


def before_step(monkeypatch, action):
    """Call ``action(step, number)`` before each step of training."""
    take = Step.__call__

    def watched(self, *arguments, **named):
        action(self, named["number"])
        return take(self, *arguments, **named)

    monkeypatch.setattr(Step, "__call__", watched)


def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_it_saves_the_step_it_was_in(tmp_path, tiny, monkeypatch):
    """Ctrl-C: nothing is lost, and the run goes on as if nothing had been."""
    tiny(tmp_path / "whole")
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        before_step(patch, lambda _, number: interrupt() if number == 3 else None)
        with pytest.raises(KeyboardInterrupt, match="step 4 is saved, and --resume goes on"):
            tiny(tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is before
    assert state(tmp_path / "run")["step"] == 4
    assert tiny(tmp_path / "run", resume=True)["resumed_from"] == 4
    assert same_state(tmp_path / "whole", tmp_path / "run")


def test_interrupted_twice_it_ends_at_once(tmp_path, tiny, monkeypatch):
    before_step(monkeypatch, lambda *_: (interrupt(), interrupt(), pytest.fail("it went on")))
    with pytest.raises(KeyboardInterrupt):
        tiny(tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_the_first_interruption_cancels_samples(tmp_path, tiny, monkeypatch):
    def draw(*_, **__):
        interrupt()
        time.sleep(5)
        pytest.fail("samples went on")

    monkeypatch.setattr(Sampler, "draw", draw)
    with pytest.raises(KeyboardInterrupt, match="step 3 is saved"):
        tiny(tmp_path / "run", sample_every=3)
    assert state(tmp_path / "run")["step"] == 3
    assert not (tmp_path / "run" / "samples").exists()


class Stop(Exception):
    pass


def stopped_at(monkeypatch, tiny, run, step, **options):
    """A run that is broken off before a step, as by a kill."""

    def stop(_, number):
        if number == step:
            raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        before_step(patch, stop)
        tiny(run, **options)


@pytest.mark.parametrize("muon", [False, True])
def test_resume_in_the_middle_of_an_epoch(tmp_path, tiny, monkeypatch, muon):
    options = {"max_steps": 12, "muon": muon, "augmentation": "flip"}
    tiny(tmp_path / "whole", **options)
    stopped_at(monkeypatch, tiny, tmp_path / "cut", 8, **options)
    assert tiny(tmp_path / "cut", resume=True, **options)["resumed_from"] == 5
    assert same_state(tmp_path / "whole", tmp_path / "cut")


def test_resume_begins_where_there_is_nothing(tmp_path, tiny):
    (tmp_path / "run").mkdir()
    figures = tiny(tmp_path / "run", resume=True)
    assert figures["steps"] == 10 and figures["resumed_from"] is None


def test_resume_of_a_finished_run_does_nothing(tmp_path, tiny):
    tiny(tmp_path / "run")
    before = contents(tmp_path)
    figures = train("digits", tmp_path / "run", resume=True)
    assert figures["finished"] and figures["resumed_from"] == 10
    assert RunFolder(tmp_path / "run").is_finished()
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("longer", "steps"),
    [({"max_steps": 14}, 14), ({"epochs": 3}, 3 * 13), ({"epochs": 2, "max_steps": 20}, 20)],
)
def test_a_finished_run_can_be_extended(tmp_path, tiny, monkeypatch, longer, steps):
    options = {"batch_size": 100, "epochs": 1, "max_steps": 10}
    tiny(tmp_path / "run", **options)
    given = {"batch_size": 100, "epochs": None, "max_steps": None, **longer}
    figures = tiny(tmp_path / "run", resume=True, **given)
    assert (figures["resumed_from"], figures["steps"], figures["finished"]) == (10, steps, True)
    assert RunFolder(tmp_path / "run").read()["steps"] == steps
    assert train("digits", tmp_path / "run", resume=True)["steps"] == steps
    with pytest.raises(RunError, match="can be extended, not shortened"):
        tiny(tmp_path / "run", resume=True, **{**given, "epochs": 1, "max_steps": 9})


def contents(folder):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


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


def test_a_folder_of_another_preset(tmp_path, tiny):
    tiny(tmp_path / "run")
    with pytest.raises(RunError, match="is a run of preset digits, not mnist"):
        train("mnist", tmp_path / "run", resume=True)


def test_other_images_than_before(tmp_path, tiny):
    tiny(tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    content = json.loads(path.read_text())
    content["data"]["checksum"] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(RunError, match="other images"):
        tiny(tmp_path / "run", resume=True)


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


@pytest.mark.parametrize("content", ["{", '{"format": 1}', '{"format": 2, "recipe": {"a": 1}}'])
def test_a_damaged_run_json(tmp_path, tiny, content):
    tiny(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(content)
    with pytest.raises(RunError, match=r"run.json is damaged"):
        tiny(tmp_path / "run", resume=True)


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


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, tiny):
    with pytest.raises(RunError, match="so the run stops; the weights saved last") as caught:
        tiny(tmp_path / "run", learning_rate=1e30)
    assert "\n" not in str(caught.value)
    assert all(p.isfinite().all() for p in load_flow(tmp_path / "run").parameters())


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
    options = {"max_steps": 30, "ema": ema, "report_every": 1}
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


@pytest.mark.parametrize("far", [math.inf, 1.0])
def test_a_step_left_out_leaves_the_statistics_of_a_classifier(tmp_path, monkeypatch, far):
    """Also where its activations are not finite, and so the statistics that it leaves."""
    measure, prepared, calls, seen = ClassificationTask.measure, Classifier.prepared, [], {}

    def far_out(self, batch):
        calls.append(batch)
        seen[len(calls)] = [b.clone() for b in self.model.buffers()]
        found = measure(self, batch)
        return {**found, "loss": found["loss"] * math.inf} if len(calls) == 7 else found

    def with_a_pixel(self, images):
        return prepared(self, images) * (far if len(calls) == 7 else 1.0)

    monkeypatch.setattr(ClassificationTask, "measure", far_out)
    monkeypatch.setattr(Classifier, "prepared", with_a_pixel)
    small = {"pairs": (1, 1), "filters": (3, 1), "batch_size": 16, "max_steps": 20}
    figures = train("digits-classifier", tmp_path / "run", validation=0.0, ema=0.5, **small)
    assert (figures["steps"], figures["steps_left_out"]) == (20, 1)
    assert all(torch.equal(a, b) for a, b in zip(seen[7], seen[8], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(seen[8], seen[9], strict=True))


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
        assert all(p.isfinite().all() for p in load_flow(run).parameters())


def weights(run):
    return {p: p.read_bytes() for p in [*run.glob("last/*"), *run.glob("checkpoint.pt")]}


def test_nothing_is_written_for_a_mistake(tmp_path):
    run = tmp_path / "run"
    wrong = {"batch_size": 0}, {"pairs": (1,), "filters": (1, 2)}, {"schedule": "up"}, {"lr": 1}
    for options in (*wrong, {"checkpoint_every": -1}, {"threads": 0}):
        with pytest.raises(ValueError):
            train("digits", run, **options)
    with pytest.raises(ValueError, match="unknown preset 'digit'; choose one of digits"):
        train("digit", run)
    for options in ({"devices": "0"}, {"accelerator": "mps"}):  # there is no such thing here
        with pytest.raises(ValueError, match="devices"):
            train("digits", run, **options)
    for folder in (None, str(tmp_path / "nowhere")):
        with pytest.raises(ValueError, match="--data"):
            train("mnist", run, data=folder)
    with pytest.raises(ValueError):
        train("mnist", run, data=str(tmp_path))
    assert not run.exists()


def test_start_from_the_weights_of_another_run(tmp_path, tiny):
    tiny(tmp_path / "one")
    tiny(tmp_path / "two", init=str(tmp_path / "one"), max_steps=1, learning_rate=1e-9)
    one, two = (Flow.load(tmp_path / name) for name in ("one", "two"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    with pytest.raises(
        RunError, match=r"another network: filters .3, 1. and not .2, 1.; leave out --filters"
    ):
        tiny(tmp_path / "three", init=str(tmp_path / "one"), filters=(2, 1))


def test_what_is_not_given_is_that_of_the_model_to_start_from(tmp_path, tiny):
    tiny(tmp_path / "one", couplings=4, validation=0.1)
    started = {"init": str(tmp_path / "one"), "batch_size": 16, "max_steps": 1, "sample_every": 0}
    for number, given in enumerate(({}, {"validation": 0.2, "warmup": 3}), 1):
        train("digits", tmp_path / str(number), **started, **given)
        recipe = RunFolder(tmp_path / str(number)).read()["recipe"]
        assert (recipe["pairs"], recipe["filters"], recipe["couplings"]) == ([1, 1], [3, 1], 4)
        expected = (given.get("validation", 0.1), given.get("warmup", 200))
        assert (recipe["validation"], recipe["warmup"]) == expected
    one, two = (Flow.load(tmp_path / name).bits_per_dim for name in ("one", "1"))
    images = load("digits", "test").images[:20]
    with torch.no_grad():  # a step does no harm
        assert abs(float(two(images).mean() - one(images).mean())) < 0.02


def test_weights_come_with_the_logit_that_they_were_trained_behind(tmp_path, tiny, monkeypatch):
    """Also when the run is resumed, whatever has become of the model that it started from."""
    tiny(tmp_path / "one", logit_lambda=0.02, centre=-3.0)
    started = {"init": str(tmp_path / "one")}
    tiny(tmp_path / "three", max_steps=1, centre=1.0, **started)
    stopped_at(monkeypatch, tiny, tmp_path / "two", 7, **started)
    other = Flow(Flow.load(tmp_path / "one").net.config, 0.2, 17)
    for name in ("last", "best"):
        other.save(tmp_path / "one" / name)
    assert tiny(tmp_path / "two", resume=True)["resumed_from"] == 5
    found = [Flow.load(tmp_path / name).logit for name in ("two", "three")]
    assert [(logit.lam, logit.centre) for logit in found] == [(0.02, -3.0), (0.02, 1.0)]


def test_weights_are_saved_before_samples_are_drawn(tmp_path, tiny, monkeypatch):
    saved = []

    def draw(*_, **__):
        saved.append(json.loads((tmp_path / "run/last/config.json").read_text())["step"])

    monkeypatch.setattr(Sampler, "draw", draw)
    tiny(tmp_path / "run", sample_every=5)
    assert saved == [5, 10]
