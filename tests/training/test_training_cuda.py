"""Training on a GPU: fast kernels and one graph for a step; skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mintnet.models import Flow
from mintnet.training import Cadence, train
from mintnet.training.devices import Devices

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

OPTIONS = {"pairs": (1, 1), "filters": (45, 11), "batch_size": 64, "max_steps": 8, "ema": 0.5}


@pytest.mark.parametrize(
    ("augmentation", "muon"), [("none", False), ("crop-flip", False), ("none", True)]
)
def test_recorded_steps_train_like_plain_ones(
    tmp_path: Path, augmentation: str, muon: bool
) -> None:
    """To a part of one step: in small directions, Muon makes much of what TF32 rounds away."""
    best, weights = {}, {}
    for name, fast, steps in (("fast", True, 8), ("plain", False, 8), ("shorter", False, 7)):
        found = train(
            "digits",
            tmp_path / name,
            devices=Devices(fast=fast),
            cadence=Cadence(samples=0),
            augmentation=augmentation,
            muon=muon,
            precision="tf32" if fast else "float32",
            **OPTIONS | {"max_steps": steps},
        )
        assert found["finished"]
        best[name] = found["best"]
        entries = Flow.load(tmp_path / name / "last").state_dict().values()
        weights[name] = torch.cat([entry.flatten().float() for entry in entries])
    assert abs(best["fast"] - best["plain"]) < 0.02
    apart = (weights["fast"] - weights["plain"]).norm()
    one_step = (weights["shorter"] - weights["plain"]).norm()
    assert 0 < apart < 0.6 * one_step


def test_a_run_goes_on_from_its_last_step(tmp_path: Path) -> None:
    whole = train("digits", tmp_path / "whole", cadence=Cadence(samples=0), **OPTIONS)
    with pytest.raises(RuntimeError, match="stop"):
        _stopped(tmp_path / "part")
    part = train("digits", tmp_path / "part", resume=True, cadence=Cadence(samples=0))
    assert part["resumed_from"] == 4
    assert abs(part["best"] - whole["best"]) < 1e-3


def test_a_step_that_cannot_be_recorded_is_run_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    recorded = train("digits", tmp_path / "recorded", cadence=Cadence(samples=0), **OPTIONS)
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    with caplog.at_level("WARNING", logger="mintnet"):
        plain = train("digits", tmp_path / "plain", cadence=Cadence(samples=0), **OPTIONS)
    assert [line.getMessage() for line in caplog.records if "recorded" in line.getMessage()] == [
        "steps are not recorded, which makes them slower "
        "(operation not permitted when stream is capturing)"
    ]
    assert abs(plain["best"] - recorded["best"]) < 0.005


def _stopped(run: Path) -> None:
    """A run that ends after its fourth step, with a checkpoint."""
    from mintnet.training.module import TrainingModule

    step = TrainingModule.training_step

    def stopping(self, *args):  # type: ignore[no-untyped-def]
        if self.step == 4:
            raise RuntimeError("stop")
        return step(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingModule, "training_step", stopping)
        train("digits", run, cadence=Cadence(samples=0, checkpoint=2), **OPTIONS)
