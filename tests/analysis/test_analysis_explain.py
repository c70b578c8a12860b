"""Explanations: every figure is that of the picture shown."""

import math

import pytest
import torch

from mintnet import FixedPoint
from mintnet.analysis import Explainer


def picture(seed):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(40, 216, (2, 4, 4), dtype=torch.uint8, generator=generator)
    return coarse.repeat_interleave(2, 1).repeat_interleave(2, 2)


@pytest.fixture(params=[True, False], ids=["elu", "no-elu"])
def model(small_classifier, request):
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
    assert bool((step.image == image).all()) and step.moved == step.clipped == 0
    assert step.padding_energy < 1e-18
    assert path.to_dict()["steps"][0]["logit_change"] < 1e-9


def test_free_moves_leave_the_logits_exactly_as_they_are(model):
    image = picture(0)
    path = Explainer(model).free(image, picture(1), moves=(0.01, 0.05))
    check(model, path, image)
    for step, moved in zip(path.steps, (0.01, 0.05), strict=True):
        torch.testing.assert_close(step.wanted, path.start.logits, atol=1e-9, rtol=1e-9)
        assert 0.7 * moved < step.moved_before < 1.4 * moved
        assert step.padding_energy > 0


def test_free_moves_towards_a_class_have_the_logits_asked_for(model):
    image = picture(0)
    start = Explainer(model).there_and_back(image).start
    label = (start.predicted + 1) % 5
    path = Explainer(model).free_towards(image, label, moves=(0.02, 0.05))
    check(model, path, image)
    gaps = [float(s.wanted[label] - s.wanted[start.predicted]) for s in (start, *path.steps)]
    assert gaps[0] < gaps[1] < gaps[2]
    others = [k for k in range(5) if k not in (label, start.predicted)]
    for step in path.steps:
        torch.testing.assert_close(step.wanted[others], start.logits[others], atol=1e-9, rtol=1e-9)


def test_towards_another_picture_with_logits_held(model):
    image, partner = picture(0), picture(1)
    path = Explainer(model, smooth=0.7, rounds=30).held(image, partner, shares=(0.3, 0.6))
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
    first, middle, last = (
        float(s.logits[label] - s.logits[start.predicted]) for s in (start, *path.steps)
    )
    assert first < 0 and path.steps[-1].predicted == label
    assert middle == pytest.approx(0, abs=0.2 * abs(first))
    assert last == pytest.approx(-first, abs=0.2 * abs(first))
    assert 0 < path.steps[0].moved < path.steps[1].moved


def test_pixels_out_of_range_are_counted_and_clipped(model):
    dark = torch.zeros(2, 8, 8, dtype=torch.uint8)
    path = Explainer(model).free(dark, picture(1), moves=(0.1,))
    check(model, path, dark)
    assert path.steps[0].clipped > 0.02
    assert path.steps[0].moved < path.steps[0].moved_before


def test_an_inverse_that_is_not_verified_is_not_shown(model):
    path = Explainer(model, FixedPoint(max_steps=1)).there_and_back(picture(0))
    (step,) = path.steps
    assert not step.verified and not step.image.any()
    assert all(map(math.isnan, (step.moved, step.clipped, step.padding_energy, step.probability)))
    with pytest.raises(ValueError, match="not verified"):
        _ = step.predicted
    figures = step.to_dict(path.start.logits)
    names = ("predicted", "probability", "logits", "logit_change", "picture_moved", "clipped")
    assert all(figures[name] is None for name in (*names, "padding_energy"))
    assert figures["verified"] is False and len(figures["wanted_logits"]) == 5
    assert path.start.to_dict(path.start.logits).keys() == figures.keys()


def test_free_moves_that_lead_nowhere_say_so(model):
    path = Explainer(model).free(picture(0), picture(0))
    assert path.steps == () and "nowhere" in path.note
    path = Explainer(model, FixedPoint(max_steps=1)).free(picture(0), picture(1), moves=(0.1,))
    assert not path.steps[0].reached and "1 of 1 moves" in path.note


def test_the_classifier_itself_stays_as_it_is(small_classifier):
    model = small_classifier().float()
    Explainer(model).there_and_back(picture(0))
    assert model.dtype == torch.float32 and next(model.parameters()).requires_grad


def test_what_is_refused(small_classifier, raises_with):
    model = small_classifier()
    explainer = Explainer(model)
    predicted = explainer.there_and_back(picture(0)).start.predicted
    for label in (predicted, -1, 5):
        for path in (explainer.towards, explainer.free_towards):
            with raises_with(ValueError, "another class", label):
                path(picture(0), label)
    with raises_with(ValueError, "(batch, 2, 8, 8)"):
        explainer.there_and_back(picture(0)[:1])
    with raises_with(ValueError, "uint8"):
        explainer.there_and_back(picture(0).double())
    with raises_with(ValueError, "evaluation mode"):
        Explainer(small_classifier().train())
    for options in ({"smooth": -1.0}, {"smooth": math.nan}, {"smooth": math.inf}, {"rounds": 0}):
        with raises_with(ValueError, *options):
            Explainer(model, **options)
