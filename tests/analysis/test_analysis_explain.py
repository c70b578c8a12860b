"""Explanations: every figure is that of the picture shown."""

import math

import pytest
import torch

from mintnet import FixedPoint
from mintnet.analysis import Explainer
from registry import small_classifier


def picture(seed):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(40, 216, (2, 4, 4), dtype=torch.uint8, generator=generator)
    return coarse.repeat_interleave(2, 1).repeat_interleave(2, 2)


@pytest.fixture(params=[True, False], ids=["elu", "no-elu"])
def model(request):
    model = small_classifier(request.param).requires_grad_(False)
    # logits that differ between pictures, and by more than rounding to grey levels does
    model.linear.weight.mul_(1000)
    pictures = torch.stack([picture(seed) for seed in range(20)])
    model.linear.bias.sub_(model.head(model.features(pictures)).mean(0))
    return model


def check(model, path, image):
    """All figures again, from the pictures alone."""
    for step in path.steps:
        assert step.verified and step.residual < 1e-9
        assert step.image.dtype == torch.uint8
        features = model.features(step.image[None])
        torch.testing.assert_close(step.logits, model.head(features)[0], atol=1e-9, rtol=1e-9)
        moved = (step.image.double() - image.double()).square().mean().sqrt() / 255
        assert step.moved == pytest.approx(float(moved))


def test_features_mapped_back(model):
    image = picture(0)
    path = Explainer(model).there_and_back(image)
    check(model, path, image)
    (step,) = path.steps
    assert bool((step.image == image).all()) and step.moved == 0


def test_towards_another_picture_with_logits_held(model):
    image, partner = picture(0), picture(1)
    path = Explainer(model, rounds=30).held(image, partner, shares=(0.3, 0.6))
    check(model, path, image)
    free = float((model.head(model.features(partner[None]))[0] - path.start.logits).abs().max())
    far = [(s.image.double() - partner.double()).norm() for s in (path.start, *path.steps)]
    assert far[2] < far[1] < far[0]
    for step in path.steps:
        assert float((step.logits - path.start.logits).abs().max()) < 0.15 * free


def test_towards_another_class(model):
    image = picture(0)
    explainer = Explainer(model, rounds=30)
    start = explainer.there_and_back(image).start
    label = int(start.logits.argmin())
    path = explainer.towards(image, label, shares=(0.5, 1.0))
    check(model, path, image)
    steps, best = (start, *path.steps), start.predicted
    first, middle, last = (float(s.logits[label] - s.logits[best]) for s in steps)
    assert first < 0 and path.steps[-1].predicted == label
    assert middle == pytest.approx(0, abs=0.2 * abs(first))
    assert last == pytest.approx(-first, abs=0.2 * abs(first))
    assert 0 < path.steps[0].moved < path.steps[1].moved


def test_an_inverse_that_is_not_verified_is_not_shown(model):
    path = Explainer(model, FixedPoint(max_steps=1)).there_and_back(picture(0))
    (step,) = path.steps
    assert not step.verified and not step.image.any()
    assert math.isnan(step.moved) and math.isnan(step.probability)
    with pytest.raises(ValueError, match="not verified"):
        _ = step.predicted
    figures = step.to_dict()
    names = ("predicted", "probability", "logits", "moved")
    assert all(figures[name] is None for name in names) and figures["verified"] is False
    assert path.start.to_dict().keys() == figures.keys()


def test_the_classifier_itself_stays_as_it_is():
    model = small_classifier().float()
    Explainer(model).there_and_back(picture(0))
    assert model.dtype == torch.float32 and next(model.parameters()).requires_grad


def test_what_is_refused(raises_with):
    model = small_classifier()
    explainer = Explainer(model)
    for label in (explainer.there_and_back(picture(0)).start.predicted, -1, 5):
        with raises_with(ValueError, "another class", label):
            explainer.towards(picture(0), label)
    with raises_with(ValueError, "(batch, 2, 8, 8)"):
        explainer.there_and_back(picture(0)[:1])
    with raises_with(ValueError, "uint8"):
        explainer.there_and_back(picture(0).double())
    with raises_with(ValueError, "evaluation mode"):
        Explainer(small_classifier().train())
    with raises_with(ValueError, "rounds"):
        Explainer(model, rounds=0)
