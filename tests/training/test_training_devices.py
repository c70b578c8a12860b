"""Two processes do what one does, and one of them alone writes."""

import os
import signal
import socket
import time

import pytest
import torch
from training_processes import TINY, finish, start, state

from mintnet.data import load
from mintnet.models import Flow
from mintnet.training import Devices, RunError, is_first_process
from mintnet.training.step import DensityTask

BATCH = {**TINY, "batch_size": 9, "preset": "digits", "precision": "float64", "max_steps": 6}
BATCH |= {"ema": 0.9, "clip": 50.0}  # 5 and 4 images


def test_two_processes_match_one(tmp_path):
    one = start(run=str(tmp_path / "one"), **BATCH)
    two = start(run=str(tmp_path / "two"), devices="2", **BATCH)
    compare(tmp_path, finish(one), finish(two))


@pytest.mark.slow
def test_two_machines_match_one(tmp_path):
    """Started by hand with the variables of Fabric; one of them alone prints and writes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    machines = []
    for rank in ("0", "1"):
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": rank}
        environment = {**os.environ, **place, "LOCAL_RANK": "0"}
        machines.append(start(environment, run=str(tmp_path / "two"), nodes=2, **BATCH))
    compare(tmp_path, finish(start(run=str(tmp_path / "one"), **BATCH)), finish(machines[0]))
    out, err = machines[1].communicate(timeout=100)
    assert machines[1].returncode == 0, err
    assert "{" not in out


@pytest.mark.slow
def test_two_processes_keep_one_set_of_statistics(tmp_path):
    options = {**TINY, "preset": "digits-classifier", "max_steps": 4, "checkpoint_every": 2}
    assert finish(start(run=str(tmp_path / "run"), devices="2", **options))["finished"]
    assert all(value.isfinite().all() for value in state(tmp_path / "run")["model"].values())


def compare(folder, one, two):
    assert one["validation"]["bpd"] == pytest.approx(two["validation"]["bpd"], 1e-10)
    first, second = state(folder / "one"), state(folder / "two")
    assert first["step"] == second["step"] == 6
    for kind in ("model", "averaged"):
        a, b = first[kind], second[kind]
        assert a and a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == torch.float64
            assert (a[name] - b[name]).abs().max() < 1e-8, name


@pytest.mark.slow
def test_two_processes_stop_at_the_same_step(tmp_path):
    options = {**TINY, "preset": "digits", "epochs": 50, "checkpoint_every": 1}
    process = start(run=str(tmp_path / "run"), devices="2", **options)
    while not (tmp_path / "run" / "checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # the other one learns of it
    _, err = process.communicate(timeout=100)
    assert "is saved, and --resume goes on" in err
    options["max_steps"] = state(tmp_path / "run")["step"] + 2
    with pytest.raises(AssertionError, match="extended, not shortened"):
        finish(start(run=str(tmp_path / "run"), resume=True, **options))


def test_evaluation_on_two_processes(tmp_path, tiny):
    tiny(tmp_path / "run", max_steps=2)
    figures = finish(start(do="evaluate", model=str(tmp_path / "run"), devices="2"))
    bits = Flow.load(tmp_path / "run").bits_per_dim(load("digits", "test").images).detach().double()
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


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"NODE_RANK": "1"}, False),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}, True),
        ({"RANK": "2", "LOCAL_RANK": "0", "GROUP_RANK": "1"}, False),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, False),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_NAME": "bash"}, True),
    ],
)
def test_the_first_process(monkeypatch, environment, first):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_first_process() == first


def test_devices_that_are_not_there(tmp_path, tiny):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RunError, match="these devices cannot be had"):
        tiny(tmp_path / "run", accelerator="cuda")


def test_validation_is_in_true_float32(tmp_path, tiny, monkeypatch):
    """However steps are computed: it says which weights are best, and figures are quoted."""
    seen = []
    measure = DensityTask.measure

    def watched(self, batch):
        seen.append((self.model.training, torch.backends.cudnn.allow_tf32))
        return measure(self, batch)

    monkeypatch.setattr(DensityTask, "measure", watched)
    tiny(tmp_path / "run", max_steps=2, precision="tf32")
    assert {tf32 for training, tf32 in seen if training} == {True}
    assert {tf32 for training, tf32 in seen if not training} == {False}
