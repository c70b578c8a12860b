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
from training_processes import TINY, finish, start

from mintnet import files
from mintnet.data import load
from mintnet.models import Classifier, Flow
from mintnet.models.locate import load_flow
from mintnet.training import Cadence, Devices, RunError, train
from mintnet.training.checkpoint import Checkpoint, _digest
from mintnet.training.classification import ClassificationTask
from mintnet.training.ema import MovingAverage
from mintnet.training.folder import RunFolder
from mintnet.training.module import TrainingModule
from mintnet.training.task import DensityTask


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_killed_and_resumed_is_bit_identical(tmp_path):
    options = {
        **TINY,
        "preset": "digits",
        "epochs": 3,
        "ema": 0.99,
        "clip": 100.0,
        "cadence": {"samples": 0, "checkpoint": 7},
    }
    undisturbed = start(run=str(tmp_path / "whole"), **options)
    killed = start(run=str(tmp_path / "killed"), **options)
    checkpoint = tmp_path / "killed" / "checkpoint.pt"
    while not checkpoint.exists() and killed.poll() is None:
        time.sleep(0.01)
    time.sleep(random.random())
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, killed.communicate()[1]
    step = Checkpoint.read(checkpoint).step
    figures = finish(start(run=str(tmp_path / "killed"), resume=True, **options))
    assert figures["resumed_from"] == step and 0 < step < figures["steps"]
    assert finish(undisturbed)["steps"] == figures["steps"]
    one, two = (Checkpoint.read(tmp_path / name / "checkpoint.pt") for name in ("whole", "killed"))
    for part in ("step", "model", "optimizer", "average", "best", "best_step"):
        assert same(getattr(one, part), getattr(two, part)), part
    for name in ("last", "best"):
        whole, again = (tmp_path / run / name / "model.safetensors" for run in ("whole", "killed"))
        assert whole.read_bytes() == again.read_bytes()
    rows = [RunFolder(tmp_path / run).read_metrics() for run in ("whole", "killed")]
    assert [r["step"] for r in rows[0]] == [r["step"] for r in rows[1]]
    one, two = ([r["bpd"] for r in part if r["kind"] == "validation"] for part in rows)
    assert one == two


def test_interrupted_it_saves_the_step_it_was_in(tmp_path, tiny, monkeypatch):
    """Ctrl-C: nothing is lost, and the run goes on as if nothing had been."""
    tiny(tmp_path / "whole", cadence=Cadence(samples=0))
    take = TrainingModule.training_step

    def interrupted(self, *arguments):
        if self.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return take(self, *arguments)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingModule, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt, match="step 5 is saved, and --resume goes on"):
            tiny(tmp_path / "run", cadence=Cadence(samples=0))
    assert signal.getsignal(signal.SIGINT) is before
    assert Checkpoint.read(tmp_path / "run" / "checkpoint.pt").step == 5
    assert tiny(tmp_path / "run", cadence=Cadence(samples=0), resume=True)["resumed_from"] == 5
    whole, again = (tmp_path / run / "last" / "model.safetensors" for run in ("whole", "run"))
    assert whole.read_bytes() == again.read_bytes()


def test_interrupted_twice_it_ends_at_once(tmp_path, tiny, monkeypatch):
    def interrupted(self, *arguments):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the step went on")

    monkeypatch.setattr(TrainingModule, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny(tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.parametrize("muon", [False, True])
def test_resume_in_the_middle_of_an_epoch(tmp_path, tiny, monkeypatch, muon):
    tiny(tmp_path / "whole", max_steps=12, muon=muon)

    class Stop(Exception):
        pass

    write = Checkpoint.write

    def stop_after(self, path):
        write(self, path)
        raise Stop

    monkeypatch.setattr(Checkpoint, "write", stop_after)
    with pytest.raises(Stop):
        tiny(tmp_path / "cut", max_steps=12, muon=muon)
    monkeypatch.undo()
    assert tiny(tmp_path / "cut", max_steps=12, muon=muon, resume=True)["resumed_from"] == 5
    one, two = (Checkpoint.read(tmp_path / name / "checkpoint.pt") for name in ("whole", "cut"))
    assert same(one.model, two.model) and same(one.optimizer, two.optimizer)


def test_resume_begins_where_there_is_nothing(tmp_path, tiny):
    (tmp_path / "run").mkdir()
    figures = tiny(tmp_path / "run", resume=True)
    assert figures["steps"] == 10 and figures["resumed_from"] is None


def test_resume_of_a_finished_run_does_nothing(tmp_path, tiny):
    tiny(tmp_path / "run")
    before = contents(tmp_path)
    figures = train("digits", tmp_path / "run", resume=True)
    assert figures["finished"] and figures["resumed_from"] == 10
    assert contents(tmp_path) == before


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
    tiny(tmp_path / "run", max_steps=10)
    path = tmp_path / "run" / "checkpoint.pt"
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "empty":
        data = bytearray()
    elif damage == "flipped":
        weights = Checkpoint.read(path).model["net.chain.parts.0.parts.0.weight1"]
        data[data.index(weights.numpy().tobytes())] ^= 1
    else:
        data = bytearray(b"not a checkpoint at all")
    path.write_bytes(data)
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"checkpoint.pt is damaged .*--run, --init") as caught:
        tiny(tmp_path / "run", resume=True)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_a_damaged_run_json(tmp_path, tiny):
    tiny(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
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
    one, two = (Checkpoint.read(tmp_path / name / "checkpoint.pt") for name in ("run", "other"))
    assert same(one.model, two.model)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, tiny):
    with pytest.raises(RunError, match="so the run stops; the weights saved last") as caught:
        tiny(tmp_path / "run", learning_rate=1e30)
    assert "\n" not in str(caught.value)
    flow = load_flow(tmp_path / "run")
    assert all(p.isfinite().all() for p in flow.parameters())


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_step_that_is_not_finite_is_left_out(tmp_path, tiny, monkeypatch, ema):
    measure, calls, before, after = DensityTask.measure, [], [], []

    def far_out(self, batch):
        calls.append(batch)
        found = measure(self, batch)
        if self.flow.training and len(calls) in (7, 8):
            before.append([p.detach().clone() for p in self.flow.parameters()])
            found["loss"] = found["loss"] * float("inf")
        if self.flow.training and len(calls) == 9:
            after.append([p.detach().clone() for p in self.flow.parameters()])
        return found

    monkeypatch.setattr(DensityTask, "measure", far_out)
    cadence = Cadence(samples=0, checkpoint=0)
    figures = tiny(
        tmp_path / "run", cadence=cadence, validation=0.0, max_steps=30, epochs=100, ema=ema
    )
    assert (figures["steps"], figures["steps_left_out"]) == (30, 2)
    assert math.isfinite(figures["train"]["bpd"])
    for a, b, c in zip(before[0], before[1], after[0], strict=True):
        assert torch.equal(a, b) and torch.equal(b, c)
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in metrics.splitlines()]
    left = [row for row in rows if row["kind"] == "left out"]
    assert [(row["step"], row["in_a_row"]) for row in left] == [(7, 1), (8, 2)]


def outliers(monkeypatch, steps, factor):
    """Multiply the loss of some training steps; what is returned holds the step to stop at."""
    measure, step, at, kill = DensityTask.measure, TrainingModule._plain_step, [0], [-1]

    def far_out(self, batch):
        found = measure(self, batch)
        return {**found, "loss": found["loss"] * factor} if at[0] in steps else found

    def watched(self, places):
        at[0] = self.step
        if self.step == kill[0]:
            raise KeyboardInterrupt
        step(self, places)

    monkeypatch.setattr(DensityTask, "measure", far_out)
    monkeypatch.setattr(TrainingModule, "_plain_step", watched)
    return kill


def test_a_run_with_a_step_left_out_goes_on_as_if_it_had_not_stopped(tmp_path, tiny, monkeypatch):
    kill = outliers(monkeypatch, (7, 9), math.inf)
    options = {"validation": 0.0, "max_steps": 30, "ema": 0.9}
    whole = tiny(tmp_path / "whole", **options)
    kill[0] = 12
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        tiny(tmp_path / "run", **options)
    kill[0] = -1
    rest = tiny(tmp_path / "run", resume=True, **options)
    assert (whole["steps_left_out"], rest["steps_left_out"], rest["resumed_from"]) == (2, 2, 10)
    a, b = (Checkpoint.read(tmp_path / name / "checkpoint.pt") for name in ("whole", "run"))
    assert same((a.model, a.optimizer, a.average), (b.model, b.optimizer, b.average))
    again = tiny(tmp_path / "run", resume=True, **options)
    assert again["steps_left_out"] == 2  # also of a run that has nothing left to do


@pytest.mark.parametrize("far", [math.inf, 1.0])
def test_a_step_left_out_leaves_the_statistics_of_a_classifier(tmp_path, monkeypatch, far):
    """Also where its activations are not finite, and so the statistics that it leaves."""
    measure, prepared, calls, seen = ClassificationTask.measure, Classifier.prepared, [], {}

    def far_out(self, batch):
        calls.append(batch)
        if self.model.training:
            seen[len(calls)] = [b.clone() for b in self.model.buffers()]
        found = measure(self, batch)
        if len(calls) == 7:
            found["loss"] = found["loss"] * math.inf
        return found

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
    measure, calls = DensityTask.measure, []

    def broken(self, batch):
        calls.append(batch)
        found = measure(self, batch)
        return {**found, "loss": found["loss"] * float("nan")} if len(calls) > 5 else found

    monkeypatch.setattr(DensityTask, "measure", broken)
    with pytest.raises(RunError, match=r"the loss is nan.* at step 11, so the run stops"):
        tiny(tmp_path / "run", validation=0.0, max_steps=50, epochs=100)


@pytest.mark.parametrize("muon", [False, True])
def test_a_run_that_goes_astray_goes_back_to_its_average(tmp_path, tiny, monkeypatch, muon):
    """Also when it is killed in between, with the same weights in the end."""
    measure, step, at, seen = DensityTask.measure, TrainingModule._plain_step, [0], {}

    def astray(self, batch):
        found = measure(self, batch)
        return {**found, "loss": found["loss"] * math.nan} if 20 <= at[0] < 26 else found

    def watched(self, places):
        at[0] = self.step
        if self.step == kill[0]:
            raise KeyboardInterrupt
        average = {name: value.clone() for name, value in self.average.weights.items()}
        step(self, places)
        model, moments = dict(self.model.named_parameters()), self.optimizers().state.values()
        same_weights = all(torch.equal(average[name], model[name]) for name in model)
        seen[self.step] = (same_weights, max(float(s["exp_avg"].abs().max()) for s in moments))

    monkeypatch.setattr(DensityTask, "measure", astray)
    monkeypatch.setattr(TrainingModule, "_plain_step", watched)
    options = {"validation": 0.0, "max_steps": 50, "epochs": 100, "ema": 0.9, "muon": muon}
    kill = [-1]
    whole = tiny(tmp_path / "whole", **options)
    assert (whole["steps"], whole["falls"], whole["steps_left_out"]) == (50, 1, 6)
    assert seen[25] == (True, 0.0) and seen[24][1] > 0 and not seen[24][0]
    rows = [
        json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows if row["kind"] == "fell back"] == [26]
    assert min(row.get("bpd", 1.0) for row in rows) > 0  # no figure is NaN
    for number, stop in enumerate((22, 30)):  # while steps are left out, and after the fall
        run, kill = tmp_path / str(number), [stop]
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            tiny(run, cadence=Cadence(samples=0, checkpoint=1), **options)
        kill = [-1]
        assert tiny(run, resume=True, **options)["falls"] == 1
        a, b = (Checkpoint.read(f / "checkpoint.pt") for f in (tmp_path / "whole", run))
        assert same((a.model, a.optimizer, a.average), (b.model, b.optimizer, b.average))


def test_a_run_falls_back_so_often_and_no_oftener(tmp_path, tiny, monkeypatch):
    measure, calls = DensityTask.measure, []

    def broken(self, batch):
        calls.append(batch)
        found = measure(self, batch)
        return {**found, "loss": found["loss"] * math.nan} if len(calls) > 5 else found

    monkeypatch.setattr(DensityTask, "measure", broken)
    # 5 steps, 5 falls after 6 steps each, and 6 steps more
    with pytest.raises(RunError, match=r"the loss is nan.* at step 41, so the run stops"):
        tiny(tmp_path / "run", validation=0.0, max_steps=50, epochs=100, ema=0.9)


LATER = ("falls", "fell_at", "left_out", "usual")  # what older versions did not write


def test_a_loss_far_above_the_usual_is_left_out(tmp_path, tiny, monkeypatch):
    kill = outliers(monkeypatch, (20, 60, 70), 50.0)  # nothing is usual yet at the first
    options = {"validation": 0.0, "max_steps": 80, "epochs": 100, "ema": 0.9}
    whole = tiny(tmp_path / "whole", **options)
    assert (whole["steps"], whole["steps_left_out"], whole["falls"]) == (80, 2, 0)
    rows = RunFolder(tmp_path / "whole").read_metrics()
    assert [row["step"] for row in rows if row["kind"] == "left out"] == [61, 71]
    kill[0] = 65
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        tiny(tmp_path / "cut", cadence=Cadence(samples=0, checkpoint=1), **options)
    kill[0] = -1
    assert tiny(tmp_path / "cut", resume=True, **options)["steps_left_out"] == 2
    a, b = (Checkpoint.read(tmp_path / name / "checkpoint.pt") for name in ("whole", "cut"))
    assert same(
        (a.model, a.optimizer, a.average, a.usual), (b.model, b.optimizer, b.average, b.usual)
    )


def test_one_image_far_out_is_learnt_from_and_hides_nothing(tmp_path, tiny, monkeypatch):
    """In every late batch one image has a million times the usual loss: no step is left out."""
    measure, seen = DensityTask.measure, []

    def with_outlier(self, batch):
        found, factors = measure(self, batch), torch.ones(len(batch.images))
        seen.append(0)
        factors[0] = 1e6 if len(seen) > 60 else 1.0  # nothing is usual before
        return {name: values * factors for name, values in found.items()}

    monkeypatch.setattr(DensityTask, "measure", with_outlier)
    options = {"validation": 0.0, "max_steps": 90, "epochs": 100, "ema": 0.9}
    quick = Cadence(samples=0, report=10)
    figures = tiny(tmp_path / "run", cadence=quick, **options)
    assert (figures["steps"], figures["steps_left_out"], figures["falls"]) == (90, 0, 0)
    rows = [r for r in RunFolder(tmp_path / "run").read_metrics() if r["kind"] == "train"]
    assert [row.get("far_out") for row in rows] == [None] * 6 + [1 / 16] * 3
    assert rows[-1]["bpd"] < rows[5]["bpd"] + 0.25  # an image at the ceiling adds 3 / 16


@pytest.mark.parametrize(("ema", "falls"), [(0.9, 1), (0.0, 0)])
def test_where_the_loss_stays_high(tmp_path, tiny, monkeypatch, ema, falls):
    """With an average the run goes back to it; without one, high is what is usual from now on."""
    outliers(monkeypatch, range(60, 64 if ema else 90), 50.0)
    options = {"validation": 0.0, "max_steps": 90, "epochs": 100, "ema": ema}
    figures = tiny(tmp_path / "run", **options)
    assert (figures["steps"], figures["steps_left_out"], figures["falls"]) == (90, 4, falls)


def test_checkpoints_without_falls_are_read(tmp_path):
    path, old = tmp_path / "checkpoint.pt", Checkpoint(step=3, model={"w": torch.ones(2)})
    content = {k: v for k, v in vars(old).items() if k not in LATER}
    torch.save({**content, "format": 1, "digest": _digest(content)}, path)
    read = Checkpoint.read(path)
    assert (read.step, read.falls, read.fell_at, read.left_out, read.usual) == (3, 0, 0, 0, [])
    del content["seconds"]
    torch.save({**content, "format": 1, "digest": _digest(content)}, path)
    with pytest.raises(RunError, match="damaged"):
        Checkpoint.read(path)


def test_weights_that_are_not_finite_are_not_written(tmp_path, tiny, monkeypatch):
    step = torch.optim.Adam.step

    def overflow(self, closure=None):
        step(self, closure)
        with torch.no_grad():
            self.param_groups[0]["params"][0].fill_(float("inf"))

    monkeypatch.setattr(torch.optim.Adam, "step", overflow)
    with pytest.raises(RunError, match=r"weights are no longer finite at step 1.* no weights are"):
        tiny(tmp_path / "run", cadence=Cadence(samples=0, checkpoint=1))
    for name in ("last", "best", "checkpoint.pt"):
        assert not (tmp_path / "run" / name).exists()


@pytest.mark.parametrize("checkpoint", [0, 5])
def test_what_was_saved_before_stays_as_it_is(tmp_path, tiny, monkeypatch, checkpoint):
    run, measure, saved = tmp_path / "run", DensityTask.measure, {}

    def poisoned(self, batch):
        calls.append(batch)
        if len(calls) == 7:
            saved.update(weights(run))
            with torch.no_grad():
                next(self.flow.parameters()).fill_(float("nan"))
        return measure(self, batch)

    calls: list = []
    monkeypatch.setattr(DensityTask, "measure", poisoned)
    with pytest.raises(RunError, match="at step 7, so the run stops"):
        tiny(run, cadence=Cadence(samples=0, checkpoint=checkpoint), validation=0.0)
    assert weights(run) == saved
    assert len(saved) == (3 if checkpoint else 0)  # last/ with two files, and checkpoint.pt
    if checkpoint:
        assert Checkpoint.read(run / "checkpoint.pt").step == 5
        assert all(p.isfinite().all() for p in load_flow(run).parameters())


def weights(run):
    files = [*run.glob("last/*"), *run.glob("checkpoint.pt")]
    return {path: path.read_bytes() for path in files}


def test_the_checkpoint_refuses_weights_that_are_not_finite(tmp_path, tiny, monkeypatch):
    update = MovingAverage.update

    def poison(self, model, step):
        update(self, model, step)
        if step == 7:
            with torch.no_grad():
                next(model.parameters()).fill_(float("inf"))

    monkeypatch.setattr(MovingAverage, "update", poison)
    with pytest.raises(RunError, match="weights are no longer finite"):
        tiny(tmp_path / "run", cadence=Cadence(samples=0, checkpoint=4), validation=0.0)
    assert Checkpoint.read(tmp_path / "run" / "checkpoint.pt").step == 4


def test_nothing_is_written_for_a_mistake(tmp_path):
    for options in ({"batch_size": 0}, {"pairs": (1,), "filters": (1, 2)}, {"schedule": "up"}):
        with pytest.raises(ValueError):
            train("digits", tmp_path / "run", **options)
    with pytest.raises(ValueError, match="unknown preset 'digit'; choose one of digits"):
        train("digit", tmp_path / "run")
    for devices in (Devices("0"), Devices(accelerator="mps")):  # there is no such thing here
        with pytest.raises(ValueError, match="devices"):
            train("digits", tmp_path / "run", devices=devices)
    with pytest.raises(ValueError):
        train("mnist", tmp_path / "run", data=str(tmp_path))
    for folder in (None, str(tmp_path / "nowhere")):
        with pytest.raises(ValueError, match="--data"):
            train("mnist", tmp_path / "run", data=folder)
    assert not (tmp_path / "run").exists()


def test_begin_with_the_weights_of_another_run(tmp_path, tiny):
    tiny(tmp_path / "one")
    tiny(tmp_path / "two", init=str(tmp_path / "one"), max_steps=1, learning_rate=1e-9)
    one, two = (Flow.load(tmp_path / name) for name in ("one", "two"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    with pytest.raises(
        RunError, match=r"another network: filters .3, 1. and not .2, 1.; leave out --filters"
    ):
        tiny(tmp_path / "three", init=str(tmp_path / "one"), filters=(2, 1))


def test_what_is_not_said_is_that_of_the_model_to_begin_with(tmp_path, tiny):
    tiny(tmp_path / "one", couplings=4, validation=0.1)
    started = {"init": str(tmp_path / "one"), "batch_size": 16, "max_steps": 1}
    for number, given in enumerate(({}, {"validation": 0.2, "warmup": 3}), 1):
        train("digits", tmp_path / str(number), cadence=Cadence(samples=0), **started, **given)
        plan = json.loads((tmp_path / str(number) / "run.json").read_text())["plan"]
        assert (plan["pairs"], plan["filters"], plan["couplings"]) == ([1, 1], [3, 1], 4)
        expected = (given.get("validation", 0.1), given.get("warmup", 200))
        assert (plan["recipe"]["validation"], plan["recipe"]["warmup"]) == expected
    one, two = (Flow.load(tmp_path / name).bits_per_dim for name in ("one", "1"))
    images = load("digits", "test").images[:20]
    with torch.no_grad():  # a step does no harm
        assert abs(float(two(images).mean() - one(images).mean())) < 0.02


def test_weights_come_with_the_logit_that_they_were_trained_behind(tmp_path, tiny):
    tiny(tmp_path / "one", logit_lambda=0.02, centre=-3.0)
    tiny(tmp_path / "two", init=str(tmp_path / "one"), max_steps=1)
    tiny(tmp_path / "three", init=str(tmp_path / "one"), max_steps=1, centre=1.0)
    found = [Flow.load(tmp_path / name).logit for name in ("one", "two", "three")]
    assert [(logit.lam, logit.centre) for logit in found] == [
        (0.02, -3.0),
        (0.02, -3.0),
        (0.02, 1.0),
    ]


def test_a_run_goes_on_behind_the_logit_that_it_was_begun_with(tmp_path, tiny, monkeypatch):
    """Whatever has become of the model that it began with."""
    tiny(tmp_path / "one", centre=-3.0)
    step = TrainingModule._plain_step

    def killed(self, places):
        if self.step == 7:
            raise KeyboardInterrupt
        step(self, places)

    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, SystemExit)):
        patch.setattr(TrainingModule, "_plain_step", killed)
        tiny(tmp_path / "two", init=str(tmp_path / "one"))
    other = Flow(Flow.load(tmp_path / "one").net.config, 0.2, 17)
    for name in ("last", "best"):
        other.save(tmp_path / "one" / name)
    assert tiny(tmp_path / "two", resume=True)["resumed_from"] == 5
    logit = Flow.load(tmp_path / "two").logit
    assert (logit.lam, logit.centre) == (0.01, -3.0)


def test_cadence_says_what_is_wrong():
    with pytest.raises(ValueError, match="checkpoint must be at least 0; got -1"):
        Cadence(checkpoint=-1)


def test_weights_are_saved_before_samples_are_drawn(tmp_path, tiny, monkeypatch):
    saved = []

    def samples(self, count, seed):
        last = tmp_path / "run" / "last" / "config.json"
        saved.append(json.loads(last.read_text())["step"] if last.exists() else None)

    monkeypatch.setattr(DensityTask, "samples", samples)
    tiny(tmp_path / "run", cadence=Cadence(samples=5, checkpoint=5))
    assert saved == [5, 10]
