"""Deep density models train as all others do: labels, start from images, resuming, --init."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from mintnet import Flow
from mintnet.data import load
from mintnet.models.deep import DeepConfig, DeepNet
from mintnet.training import Progress, RunError, evaluate, train
from mintnet.training.step import Batch, DensityTask
from registry import away_from_zero

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
        bounds = ("mean", "importance")
        mean, tight = (evaluate(flow, test, draws=3, bound=b).bits_per_dim for b in bounds)
        assert tight < mean < 5
    if labels:
        for layer in whole.net.layers():  # as few steps teach hardly anything, labels would tie
            torch.nn.init.normal_(layer.network.shifts)
        wrong = (whole.classify(test.images).argmax(1) != test.labels).double().mean()
        found = evaluate(whole, test, classify=True, batch_size=7)
        assert found.label_error == pytest.approx(float(wrong), abs=0.03)
        assert found.bits_per_dim == pytest.approx(evaluate(whole, test).bits_per_dim, rel=1e-6)
    train("digits-deep", tmp_path / "more", init=str(tmp_path / "whole"), max_steps=1)
    assert Flow.load(tmp_path / "more").describe() == whole.describe()


def test_a_fresh_model_is_started_from_the_images(tmp_path: Path) -> None:
    train("digits-deep", tmp_path / "run", max_steps=1, learning_rate=1e-9, **SMALL)
    fresh = Flow(Flow.load(tmp_path / "run").net.config, None, 17)
    images = load("digits", "test").images[:50]
    with torch.no_grad():
        flows = Flow.load(tmp_path / "run"), fresh.eval()
        started, plain = (float(flow.bits_per_dim(images).mean()) for flow in flows)
    assert started < plain - 0.1


def test_what_takes_long_is_told_and_done_once(tmp_path: Path, monkeypatch, capsys) -> None:
    given = {**SMALL, "progress": Progress(Console(width=200))}
    train("digits-deep", tmp_path / "run", max_steps=2, **given)
    told = capsys.readouterr().out
    assert "starting the network from 250 images\n" in told
    assert told.count("measuring the scores of 72 held-out images") == 1  # last and best are equal
    monkeypatch.setattr(DeepNet, "initialize", pytest.fail)
    train("digits-deep", tmp_path / "run", resume=True, max_steps=3)
    monkeypatch.setattr("mintnet.training.start.build_task", pytest.fail)
    assert train("digits-deep", tmp_path / "run", resume=True)["finished"]


@pytest.mark.parametrize(
    ("preset", "options", "words"),
    [
        ("digits", {"labels": True}, "-deep"),
        ("digits", {"blocks": (2,)}, "mixture layers"),
        ("digits-deep", {"pairs": (2,)}, "--pairs"),
        ("digits-deep", {"centre": -3.0}, "--centre"),
        ("digits-deep", {"data": "x"}, "needs no files.*leave --data out"),
        ("digits", {"size": 8}, "preset folder; leave --size out"),
    ],
)
def test_options_of_the_other_family(preset: str, options: dict, words: str, tmp_path) -> None:
    with pytest.raises(RunError, match=words):
        train(preset, tmp_path / "run", max_steps=1, **options)


def test_a_label_weight_adds_bayes_rule(tmp_path: Path) -> None:
    """Of two labels the other one is known, so that loss and gradient can be written out."""
    flow = Flow(DeepConfig((1, 4, 4), (1,), (3,), (1,), (2,), 2), None, levels=17).double()
    away_from_zero(flow)
    images, labels = torch.arange(96).view(6, 1, 4, 4) % 17, torch.tensor([0, 1, 1, 0, 1, 0])
    batch = Batch(images.byte(), labels, torch.arange(6), 0, 0)
    plain, other = (
        DensityTask(flow.train()).measure(b) for b in (batch, replace(batch, labels=1 - labels))
    )
    found = DensityTask(flow, 0.5).measure(batch)
    torch.testing.assert_close(found["bpd"], plain["bpd"])
    expected = plain["loss"].clone()
    expected[::4] += 0.5 * 3 * (plain["loss"] - other["loss"])[::4].exp().log1p()
    torch.testing.assert_close(found["loss"], expected)
    trained = [weight for weight in flow.parameters() if weight.requires_grad]
    pairs = (torch.autograd.grad(loss.sum(), trained) for loss in (found["loss"], expected))
    torch.testing.assert_close(*pairs)
    with pytest.raises(RunError, match="give --labels"):
        train("digits-deep", tmp_path / "run", label_weight=1.0)


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
