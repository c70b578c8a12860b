"""The cache of a transform: what it saves, and when it must not be used."""

import pytest
import torch
from torch.distributions import Independent, Normal, TransformedDistribution

from mintnet import BijectionTransform, MintLayer
from registry import away_from_zero


def layer() -> MintLayer:
    return away_from_zero(MintLayer(2, 3, (3, 4)).double(), 3, 2.0).eval()


@pytest.fixture
def counted(monkeypatch):
    """A layer, and how often it was run forward and how often solved."""
    made, counts = layer(), {"transform": 0, "find": 0}

    def counting(name, method):
        def count(*arguments):
            counts[name] += 1
            return method(*arguments)

        return count

    for name in counts:
        monkeypatch.setattr(made, name, counting(name, getattr(made, name)))
    return made, counts


def noise(*batch: int) -> torch.Tensor:
    return torch.randn(*batch, 2, 3, 4, dtype=torch.float64)


def test_a_sample_is_scored_without_a_second_solve(counted) -> None:
    made, counts = counted
    base = Independent(Normal(torch.zeros(2, 3, 4, dtype=torch.float64), 1.0), 3)
    cached = TransformedDistribution(base, [BijectionTransform(made, cache_size=1).inv])
    x = cached.rsample((4,))
    assert counts == {"transform": 0, "find": 1}
    score = cached.log_prob(x)
    assert counts == {"transform": 1, "find": 1}  # once forward, for the log-determinant
    plain = TransformedDistribution(base, [BijectionTransform(made).inv])
    torch.testing.assert_close(plain.log_prob(x), score, rtol=1e-10, atol=1e-10)
    assert counts == {"transform": 3, "find": 1}  # z, then the log-determinant


def test_forward_then_back_costs_one_evaluation(counted) -> None:
    made, counts = counted
    t, x = BijectionTransform(made, cache_size=1), noise(4)
    y = t(x)
    assert t.inv(y) is x and t(x) is y
    assert counts == {"transform": 1, "find": 0}
    t.inv(y.clone())  # another tensor: solved
    assert counts["find"] == 1
    t = BijectionTransform(made)  # without a cache
    for _ in range(2):
        t.inv(y)
    assert counts["find"] == 3


CHANGES = {
    "step": lambda t, x, y: t.bijection.bias1.add_(1.0),
    "load": lambda t, x, y: t.bijection.load_state_dict(
        away_from_zero(MintLayer(2, 3, (3, 4)), 8, 1.0).state_dict()
    ),
    "x": lambda t, x, y: x.mul_(2),
    "y": lambda t, x, y: y.mul_(2),
    "mode": lambda t, x, y: t.train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_or_tensors_are_noticed(change: str) -> None:
    made, x = layer(), noise(2)
    t = BijectionTransform(made, cache_size=1)
    with torch.no_grad():
        y = t(x)
        CHANGES[change](t, x, y)
        torch.testing.assert_close(t(x), made(x)[0], rtol=0, atol=0)
        torch.testing.assert_close(t.inv(y), BijectionTransform(made).inv(y), rtol=1e-9, atol=1e-9)
        t.float()
        with pytest.raises(ValueError, match="float32"):
            t(x)


def test_a_value_without_a_gradient_does_not_stand_in_for_one() -> None:
    t, x = BijectionTransform(layer(), cache_size=1), noise(2)
    with torch.no_grad():
        y = t(x)
    assert not y.requires_grad
    assert t(x).requires_grad
    with torch.no_grad():
        x = t.inv(y)
    assert t.inv(y).requires_grad
    assert t.log_abs_det_jacobian(x, y).requires_grad


def test_inference_mode_is_never_stale() -> None:
    t = BijectionTransform(layer(), cache_size=1)
    with torch.inference_mode():
        x = noise(2)
        y = t(x)
        x.mul_(2)
        assert not torch.equal(t(x), y)
