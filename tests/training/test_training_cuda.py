"""Training on a GPU: fast kernels and one graph for a step; skipped where there is none."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from training_processes import stopped_at

from mintnet.models import Flow
from mintnet.training import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

OPTIONS = {"pairs": (1, 1), "filters": (45, 11), "batch_size": 64, "max_steps": 8, "ema": 0.5}
OPTIONS["sample_every"] = 0


@pytest.mark.parametrize("augmentation", ["none", "crop-flip"])
def test_captured_steps_train_like_plain_ones(tmp_path: Path, augmentation: str) -> None:
    """To a part of one step."""
    best, weights = {}, {}
    for name, fast, steps in (("fast", True, 8), ("plain", False, 8), ("shorter", False, 7)):
        found = train(
            "digits",
            tmp_path / name,
            plain=not fast,
            augmentation=augmentation,
            precision="tf32" if fast else "float32",
            **OPTIONS | {"max_steps": steps},
        )
        assert found["finished"]
        best[name] = found["best"]
        entries = Flow.load(tmp_path / name / "last").state_dict().values()
        weights[name] = torch.cat([entry.flatten().float() for entry in entries])
    assert abs(best["fast"] - best["plain"]) < 0.02
    apart = (weights["fast"] - weights["plain"]).norm()
    assert 0 < apart < 0.6 * (weights["shorter"] - weights["plain"]).norm()


def test_a_run_goes_on_from_its_last_step(tmp_path: Path, monkeypatch) -> None:
    whole = train("digits", tmp_path / "whole", **OPTIONS)
    begin = partial(train, "digits", checkpoint_every=2)
    stopped_at(monkeypatch, begin, tmp_path / "part", 4, **OPTIONS)
    part = train("digits", tmp_path / "part", resume=True)
    assert part["resumed_from"] == 4
    assert abs(part["best"] - whole["best"]) < 1e-3


def test_a_step_that_cannot_be_captured_is_run_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    captured = train("digits", tmp_path / "captured", **OPTIONS)
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    with caplog.at_level("WARNING", logger="mintnet"):
        plain = train("digits", tmp_path / "plain", **OPTIONS)
    lines = [line.getMessage() for line in caplog.records if "captured" in line.getMessage()]
    assert len(lines) == 1 and "operation not permitted when stream is capturing" in lines[0]
    assert abs(plain["best"] - captured["best"]) < 0.005
