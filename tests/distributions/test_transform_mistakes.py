"""What users get wrong, and what they are told; small things of the transform's own."""

import pytest
import torch
from torch.distributions import (
    ComposeTransform,
    IndependentTransform,
    Normal,
    SigmoidTransform,
    TransformedDistribution,
    biject_to,
    constraints,
)

import mintnet
from mintnet import BijectionTransform, Composed, Flip, Flow, Logit, MintLayer, Squeeze
from mintnet.calculus import Softplus
from registry import away_from_zero


@pytest.fixture
def layer() -> MintLayer:
    return away_from_zero(MintLayer(2, 2, (3, 3)).double(), 3, 1.5).eval()


def test_not_a_bijection(raises_with) -> None:
    with raises_with(TypeError, "bijection", "Flow", "flow.net", "FlowDistribution"):
        BijectionTransform(Flow.preset("digits"))
    with raises_with(TypeError, "solver", "'auto'"):
        BijectionTransform(Flip(), solver="auto")
    with raises_with(ValueError, "cache_size"):
        BijectionTransform(Flip(), cache_size=2)


def test_wrong_shapes_and_types(layer: MintLayer, raises_with) -> None:
    t, flip = BijectionTransform(layer), BijectionTransform(Flip())
    logit = BijectionTransform(Logit(0.05), event_dim=1)
    zeros = torch.zeros(4, 2, 3, 3, dtype=torch.float64)
    for ask, *words in (
        (lambda: t(zeros[..., :2]), "2, 3, 3", "(4, 2, 3, 2)"),
        (lambda: t.inv(zeros[0, 0]), "2, 3, 3", "(3, 3)"),
        (lambda: t.forward_shape((2, 3)), "2, 3, 3", "(2, 3)"),
        (lambda: t(zeros.float()), "float64", "float32"),
        (lambda: t([1.0]), "tensors", "list"),
        (lambda: t(zeros + float("nan")), "finite"),
        (lambda: BijectionTransform(layer, event_dim=2), "3 axes", "event_dim=2"),
        (lambda: BijectionTransform(Flip(), event_dim=-1), "event_dim", "-1"),
        (lambda: flip(torch.zeros(4, 4)), "3 axes", "(4, 4)"),
        (lambda: logit(torch.tensor([2.0])), "[-0.05", "1.05"),
    ):
        with raises_with(ValueError, *words):
            ask()


def test_an_inverse_that_fails_raises(layer: MintLayer) -> None:
    """With the wrong solver, outside the image, and where a batch norm still learns."""
    y = 3 * torch.randn(2, 2, 3, 3, dtype=torch.float64)
    impatient = BijectionTransform(layer, solver=mintnet.FixedPoint(max_steps=1))
    with pytest.raises(mintnet.InversionError):
        impatient.inv(y)
    with torch.no_grad(), pytest.raises(mintnet.InversionError):
        TransformedDistribution(Normal(torch.zeros_like(y), 1.0), [impatient.inv]).sample()
    bent = BijectionTransform(Composed(Softplus(), (3,)))
    with pytest.raises(mintnet.InversionError):
        bent.inv(torch.tensor([-1.0, 1.0, 1.0]))
    with pytest.raises(RuntimeError, match="training"):
        BijectionTransform(mintnet.BatchNorm(2)).inv(torch.zeros(2, 1, 1))


def test_the_image_of_a_softplus_is_known_to_validation() -> None:
    bent = BijectionTransform(Composed(Softplus(), (3,)))
    assert bent.codomain.base_constraint.lower_bound == 0
    model = TransformedDistribution(Normal(torch.zeros(3), 1.0), [bent], validate_args=True)
    with pytest.raises(ValueError, match="support"):
        model.log_prob(torch.tensor([-1.0, 1.0, 1.0]))
    free = torch.tensor([-3.0, 0.0, 3.0])  # what samplers of unconstrained values start from
    assert bool(model.support.check(biject_to(model.support)(free)))


def test_entry_by_entry_like_torchs_own() -> None:
    """event_dim=0: λ → 0 makes it the inverse of torch's sigmoid."""
    t, x = BijectionTransform(Logit(1e-12), event_dim=0), torch.rand(2, 3, dtype=torch.float64)
    sigmoid = SigmoidTransform()
    y = sigmoid.inv(x)
    torch.testing.assert_close(t(x), y, rtol=1e-6, atol=1e-6)
    expected = sigmoid.inv.log_abs_det_jacobian(x, y)
    torch.testing.assert_close(t.log_abs_det_jacobian(x, y), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(t.inv(y), x)
    rows = IndependentTransform(t, 1).log_abs_det_jacobian(x, y)
    torch.testing.assert_close(rows, expected.sum(-1), rtol=1e-6, atol=1e-6)
    whole = ComposeTransform([t, BijectionTransform(Flip(), event_dim=1)])
    assert whole.event_dim == 1 and whole.log_abs_det_jacobian(x, whole(x)).shape == (2,)


def test_repr_and_class_constraints() -> None:
    text = repr(BijectionTransform(Squeeze(2, (1, 4, 4))))
    assert text == "BijectionTransform(Squeeze, (1, 4, 4) → (4, 2, 2))"
    assert repr(BijectionTransform(Flip())) == "BijectionTransform(Flip, any shape)"
    assert constraints.is_dependent(BijectionTransform.domain)
