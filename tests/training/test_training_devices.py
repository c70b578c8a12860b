"""Two processes do what one does."""

import pytest
import torch
from training_processes import TINY, finish, start

from mintnet.data import load
from mintnet.models.locate import load_flow
from mintnet.training import Devices, RunError, evaluate
from mintnet.training.checkpoint import Checkpoint
from mintnet.training.devices import float32_math, is_first_process
from mintnet.training.task import DensityTask


def test_two_processes_match_one(tmp_path):
    options = {
        **TINY,
        "preset": "digits",
        "batch_size": 9,  # 5 and 4 images
        "accumulate": 2,
        "precision": "float64",
        "epochs": 1,
        "max_steps": 6,
        "ema": 0.9,
        "clip": 50.0,
        "cadence": {"samples": 0},
    }
    one = start(run=str(tmp_path / "one"), **options)
    two = start(run=str(tmp_path / "two"), devices="2", **options)
    figures = [finish(one), finish(two)]
    assert figures[0]["validation"]["bpd"] == pytest.approx(figures[1]["validation"]["bpd"], 1e-10)
    first, second = (Checkpoint.read(tmp_path / run / "checkpoint.pt") for run in ("one", "two"))
    assert first.step == second.step == 6
    for kind in ("model", "average"):
        a, b = getattr(first, kind), getattr(second, kind)
        assert a and a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == torch.float64
            assert (a[name] - b[name]).abs().max() < 1e-8, name


def test_evaluation_on_two_processes(tmp_path, tiny):
    tiny(tmp_path / "run", max_steps=2)
    figures = finish(start(do="evaluate", model=str(tmp_path / "run"), devices="2"))
    images = load("digits", "test").images
    bits = load_flow(tmp_path / "run").bits_per_dim(images).detach().double()
    assert figures["images"] == 360
    assert figures["bits_per_dim"] == pytest.approx(float(bits.mean()), abs=1e-6)


@pytest.mark.slow
def test_more_processes_than_images_in_a_batch(tmp_path):
    process = start(preset="digits", run=str(tmp_path), devices="2", **{**TINY, "batch_size": 1})
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    assert err.count("cannot be split over 2 processes") == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (1, 1)),
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, (4, 2)),
        ({"SLURM_NTASKS": "6", "SLURM_NTASKS_PER_NODE": "3", "SLURM_NNODES": "2"}, (3, 2)),
    ],
)
def test_launchers_say_how_many(monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Devices().resolved() == expected
    assert Devices("2", 1).resolved() == (2, 1)


def test_the_first_process(monkeypatch):
    assert is_first_process()
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("NODE_RANK", "1")
    assert not is_first_process()
    monkeypatch.setenv("RANK", "0")
    assert is_first_process()


@pytest.mark.parametrize("wrong", [{"devices": "0"}, {"devices": "all"}, {"accelerator": "tpu"}])
def test_devices_that_make_no_sense(wrong):
    with pytest.raises(ValueError):
        Devices(**wrong).resolved()


def test_devices_that_are_not_there(tmp_path, tiny):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RunError, match="these devices cannot be had"):
        tiny(tmp_path / "run", devices=Devices(accelerator="cuda"))


def test_true_float32_is_restored_afterwards():
    before = torch.backends.cudnn.allow_tf32
    with float32_math(tf32=False):
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before


def test_validation_is_in_true_float32(tmp_path, tiny, monkeypatch):
    """However steps are computed: it says which weights are best, and figures are quoted."""
    seen = []
    measure = DensityTask.measure

    def watched(self, batch):
        seen.append((self.flow.training, torch.backends.cudnn.allow_tf32))
        return measure(self, batch)

    monkeypatch.setattr(DensityTask, "measure", watched)
    tiny(tmp_path / "run", max_steps=2, precision="tf32")
    assert {tf32 for training, tf32 in seen if training} == {True}
    assert {tf32 for training, tf32 in seen if not training} == {False}


def test_evaluate_wants_images_of_the_model(tmp_path, tiny):
    tiny(tmp_path / "run", max_steps=1)
    data = load("digits", "test")
    with pytest.raises(ValueError, match="draws must be at least 1"):
        evaluate(load_flow(tmp_path / "run"), data, draws=0)
