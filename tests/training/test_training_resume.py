"""Kill, Ctrl-C and resume; runs that are extended, and runs that start from a model."""

import os
import signal
import time

import pytest
import torch
from training_processes import before_step, contents, same_state, state, stopped_at

from mintnet.data import load
from mintnet.models import Flow
from mintnet.training import RunError, RunFolder, train
from mintnet.training.output import Sampler


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


@pytest.fixture
def all_grids(monkeypatch):
    """Samples have all the time that they need, however busy the machine is."""
    monkeypatch.setattr("mintnet.training.output.LEAST", 1e9)


def test_the_first_interruption_cancels_samples(tmp_path, tiny, monkeypatch, all_grids):
    def draw(*_, **__):
        assert state(tmp_path / "run")["step"] == 3  # weights are saved before samples are drawn
        interrupt()
        time.sleep(5)
        pytest.fail("samples went on")

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "draw", draw)
        with pytest.raises(KeyboardInterrupt, match="step 3 is saved"):
            tiny(tmp_path / "run", sample_every=3, checkpoint_every=3)
    assert not (tmp_path / "run" / "samples").exists()
    tiny(tmp_path / "run", resume=True, sample_every=3)
    grids = sorted(path.name for path in (tmp_path / "run" / "samples").iterdir())
    assert grids == [f"step_{step:07d}.png" for step in (3, 6, 9, 10)]


class Killed(BaseException):
    pass


def test_killed_before_its_samples_a_run_draws_them(tmp_path, tiny, monkeypatch, all_grids):
    """Also of its last step: such a run is not yet finished."""

    draw = Sampler.draw

    def killed(self, flow, elapsed, last):
        if last == (step == 10):
            (tmp_path / "run" / ".part-x").mkdir()
            raise Killed
        return draw(self, flow, elapsed, last)

    for step in (5, 10):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Sampler, "draw", killed)
            tiny(tmp_path / "run", resume=True, sample_every=5)
        assert state(tmp_path / "run")["step"] == step
    tiny(tmp_path / "run", resume=True, sample_every=5)
    names = {path.name for path in (tmp_path / "run").rglob("*")}
    assert {"step_0000005.png", "step_0000010.png"} <= names and ".part-x" not in names


def test_scores_that_were_interrupted_are_measured_later(tmp_path, tiny, monkeypatch):
    keep, measured = Flow.keep_scores, []
    with monkeypatch.context() as patch:
        patch.setattr(Flow, "keep_scores", interrupt)
        with pytest.raises(KeyboardInterrupt, match=r"scores.*, are missing; --resume"):
            tiny(tmp_path / "run")
    monkeypatch.setattr(Flow, "keep_scores", lambda *args: (measured.append(1), keep(*args)))
    for _ in range(2):
        assert tiny(tmp_path / "run", resume=True)["resumed_from"] == 10
    assert measured == [1]  # the weights of last and best are equal
    assert Flow.load(tmp_path / "run" / "best").scores is not None


@pytest.mark.parametrize("preset", ["digits", "digits-classifier"])
def test_resume_in_the_middle_of_an_epoch(tmp_path, tiny, monkeypatch, preset):
    options = {"preset": preset, "max_steps": 12, "ema": 0.9, "augmentation": "crop-flip"}
    tiny(tmp_path / "whole", **options)
    stopped_at(monkeypatch, tiny, tmp_path / "cut", 8, **options)
    assert tiny(tmp_path / "cut", resume=True, **options)["resumed_from"] == 5
    assert same_state(tmp_path / "whole", tmp_path / "cut")


def test_resume_begins_where_there_is_nothing_and_leaves_what_is_finished(tmp_path, tiny):
    (tmp_path / "run").mkdir()
    assert tiny(tmp_path / "run", resume=True)["resumed_from"] is None
    before = contents(tmp_path)
    figures = train("digits", tmp_path / "run", resume=True)
    assert figures["finished"] and figures["resumed_from"] == 10
    assert RunFolder(tmp_path / "run").is_finished()
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("longer", "steps"),
    [({"max_steps": 14}, 14), ({"epochs": 2}, 2 * 13), ({"epochs": 4, "max_steps": 20}, 20)],
)
def test_a_finished_run_can_be_extended(tmp_path, tiny, monkeypatch, longer, steps):
    tiny(tmp_path / "run", batch_size=100, epochs=3, max_steps=10)
    given = {"batch_size": 100, "epochs": None, "max_steps": None, **longer}
    figures = tiny(tmp_path / "run", resume=True, **given)
    assert (figures["resumed_from"], figures["steps"], figures["finished"]) == (10, steps, True)
    assert RunFolder(tmp_path / "run").read()["steps"] == steps
    assert train("digits", tmp_path / "run", resume=True)["steps"] == steps
    with pytest.raises(RunError, match="can be extended, not shortened"):
        tiny(tmp_path / "run", resume=True, **{**given, "epochs": 1, "max_steps": 9})


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
    found = [Flow.load(tmp_path / name).pixels for name in ("two", "three")]
    assert [(logit.lam, logit.centre) for logit in found] == [(0.02, -3.0), (0.02, 1.0)]
