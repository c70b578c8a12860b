"""Deep density models train as all others do: labels, start from images, resuming, --init."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mintnet import Flow
from mintnet.data import load
from mintnet.training import RunError, evaluate, train

SMALL = {"filters": (4,), "blocks": (1,), "components": (3,), "batch_size": 16, "sample_every": 0}


@pytest.mark.parametrize("labels", [False, True])
def test_train_resume_and_evaluate(labels: bool, tmp_path: Path) -> None:
    options = {**SMALL, "labels": labels or None}
    train("digits-deep", tmp_path / "whole", max_steps=6, **options)
    train("digits-deep", tmp_path / "parts", max_steps=3, **options)
    train("digits-deep", tmp_path / "parts", max_steps=6, resume=True)
    whole, parts = (Flow.load(tmp_path / name) for name in ("whole", "parts"))
    assert whole.classes == (10 if labels else 0) and whole.base_name == "logistic"
    # The schedule of three steps is not that of six: the runs differ, and both are sound.
    test = load("digits", "test").first(40)
    for flow in (whole, parts):
        mean, tight = (
            evaluate(flow, test, draws=3, bound=bound).bits_per_dim
            for bound in ("mean", "importance")
        )
        assert tight < mean < 5
    if labels:
        assert whole.classify(test.images).shape == (40, 10)
    train("digits-deep", tmp_path / "more", init=str(tmp_path / "whole"), max_steps=1)
    assert Flow.load(tmp_path / "more").describe() == whole.describe()


def test_a_fresh_model_is_started_from_the_images(tmp_path: Path) -> None:
    train("digits-deep", tmp_path / "run", max_steps=1, learning_rate=1e-9, **SMALL)
    fresh = Flow(Flow.load(tmp_path / "run").net.config, None, 17)
    images = load("digits", "test").images[:50]
    with torch.no_grad():
        started, plain = (
            float(flow.bits_per_dim(images).mean())
            for flow in (Flow.load(tmp_path / "run"), fresh.eval())
        )
    assert started < plain - 0.1


@pytest.mark.parametrize(
    ("preset", "options", "words"),
    [
        ("digits", {"labels": True}, "-deep"),
        ("digits", {"blocks": (2,)}, "mixture layers"),
        ("digits-deep", {"pairs": (2,)}, "--pairs"),
        ("digits-deep", {"centre": -3.0}, "--centre"),
    ],
)
def test_options_of_the_other_family(preset: str, options: dict, words: str, tmp_path) -> None:
    with pytest.raises(RunError, match=words):
        train(preset, tmp_path / "run", max_steps=1, **options)


def test_labels_can_be_taught_to_a_model_without(tmp_path: Path) -> None:
    """At first they change nothing; a model with labels does not start one without."""
    train("digits-deep", tmp_path / "plain", max_steps=2, **SMALL)
    start = {"init": str(tmp_path / "plain"), "learning_rate": 1e-9, "max_steps": 1}
    train("digits-deep", tmp_path / "labelled", labels=True, sample_every=0, **start)
    plain, labelled = (Flow.load(tmp_path / name) for name in ("plain", "labelled"))
    images, labels = load("digits", "test").images[:20], load("digits", "test").labels[:20]
    with torch.no_grad():
        found = labelled.log_prob(images, labels=labels)
        torch.testing.assert_close(found, plain.log_prob(images), rtol=1e-3, atol=0.1)
    with pytest.raises(RunError, match="classes 10 and not 0"):
        train("digits-deep", tmp_path / "no", init=str(tmp_path / "labelled"), labels=False)
