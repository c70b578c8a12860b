"""Every bijection of the registry as a transform of torch.distributions."""

import pickle
from copy import deepcopy
from functools import cache

import pytest
import torch
from torch.distributions import ComposeTransform, Independent, Normal, constraints
from torch.distributions import TransformedDistribution as Transformed

from mintnet import Bijection, BijectionTransform, Wavefront
from registry import CASES, SMALL, Case, along_a_direction

BATCHES = [(), (3,), (2, 3), (2, 0)]
by_case = pytest.mark.parametrize("case", CASES, ids=str)
by_exact = pytest.mark.parametrize("case", [case for case in CASES if case.exact], ids=str)
by_small = pytest.mark.parametrize("case", SMALL, ids=str)


@cache
def bijection_of(case: Case) -> Bijection:
    return case.build()


def transform_of(case: Case, cache_size: int = 0) -> BijectionTransform:
    solver, axes = Wavefront() if case.name.startswith("trained") else None, len(case.input_shape)
    return BijectionTransform(bijection_of(case), cache_size, solver=solver, event_dim=axes)


def standard_normal(shape: tuple[int, ...]) -> Independent:
    return Independent(Normal(torch.zeros(shape, dtype=torch.float64), 1.0), len(shape))


@by_case
def test_it_is_the_bijection_with_its_own_shapes(case: Case) -> None:
    t, x = transform_of(case), case.sample_input(6)
    z, expected = bijection_of(case)(x)
    for batch in BATCHES:
        count = torch.Size(batch).numel()
        part = x[:count].reshape(*batch, *case.input_shape)
        y = t(part)
        log_det = t.log_abs_det_jacobian(part, y)
        assert y.shape == (*batch, *z.shape[1:]) and log_det.shape == batch
        assert t.forward_shape(part.shape) == y.shape and t.inverse_shape(y.shape) == part.shape
        assert count or t.inv(y).shape == part.shape
        near = max(1e-12, case.adaptive)  # an integrator chooses other steps for another batch
        torch.testing.assert_close(y.flatten(), z[:count].flatten(), rtol=near, atol=near)
        if not case.exact:  # estimates differ from call to call
            continue
        torch.testing.assert_close(log_det.flatten(), expected[:count], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(t.call_and_ladj(part), (y, log_det))


@by_case
def test_inverse_comes_back_in_any_batch_shape(case: Case) -> None:
    t, x = transform_of(case), case.sample_input(2)
    with torch.no_grad():
        for part in (x[0], x.reshape(1, 2, *case.input_shape)):
            y = t(part)
            back = t.inv(y)
            assert back.shape == part.shape
            assert t.inv.forward_shape(y.shape) == part.shape
            assert t.inv.inverse_shape(part.shape) == y.shape
            assert float((back - part).abs().max() / x.abs().max()) <= case.tolerance
            if case.exact:
                log_det = t.log_abs_det_jacobian(part, y)
                assert torch.equal(t.inv.log_abs_det_jacobian(y, part), -log_det)


@by_case
def test_constraints_hold_what_they_say(case: Case) -> None:
    t, x = transform_of(case), case.sample_input(4)
    assert t.domain.event_dim == len(case.input_shape)
    assert t.codomain.event_dim == t(x).dim() - 1
    assert bool(t.domain.check(x).all()) and bool(t.codomain.check(t(x)).all())
    assert (t.codomain.base_constraint is constraints.real) is case.onto
    assert bool(t.inv.domain.check(t(x)).all())
    assert t.bijective and not t.domain.is_discrete
    assert list(map(id, t.parameters())) == list(map(id, bijection_of(case).parameters()))


@by_exact
def test_with_torch_transforms_and_in_a_distribution(case: Case) -> None:
    """log N(t(x)) + log |det|, with the bijection between two of torch's own transforms."""
    t, x = transform_of(case), case.sample_input(3)
    twice = torch.distributions.AffineTransform(0.3, 2.0)
    whole = ComposeTransform([twice.inv, t, twice])  # each entry / 2, the bijection, each · 2
    normal = standard_normal(bijection_of(case)(x)[0].shape[1:])
    model = Transformed(normal, [whole.inv], validate_args=True)
    assert model.event_shape == case.input_shape and model.batch_shape == ()
    inner = (x - 0.3) / 2
    if case.name.startswith("logit") or case.name.endswith("pixels"):
        inner, x = x, 2 * x + 0.3
    z, log_det = bijection_of(case)(inner)
    expected = normal.log_prob(0.3 + 2 * z) + log_det  # the factors 1/2 and 2 cancel
    torch.testing.assert_close(model.log_prob(x), expected, rtol=1e-10, atol=1e-10)


@by_small
def test_equality_copies_and_pickles(case: Case) -> None:
    t = transform_of(case)
    assert t == transform_of(case, 1) and hash(t) == hash(transform_of(case, 1))
    assert t.inv == transform_of(case).inv and t.inv.inv is t
    assert t != BijectionTransform(case.build(), event_dim=t.domain.event_dim)
    assert t.with_cache(0) is t and t.with_cache(1)._cache_size == 1
    assert t.inv.with_cache(1).inv == t
    cached, x = transform_of(case, 1), case.sample_input(2)
    y = cached(x)
    copy = deepcopy(cached)  # with a graph in the cache
    assert copy != cached
    near = 0.0 if case.exact else 1e-3  # spectral norms are still being found
    torch.testing.assert_close(copy(x), y, rtol=near, atol=near)
    if "composed" not in case.name:  # those hold functions of these tests
        torch.testing.assert_close(pickle.loads(pickle.dumps(cached))(x), y, rtol=near, atol=near)


SIZES = {case: sum(p.numel() for p in case.build().parameters()) for case in SMALL if case.onto}


@pytest.mark.parametrize("case", [case for case in SIZES if 0 < SIZES[case] < 400], ids=str)
def test_the_inverse_has_gradients_in_y_and_in_the_weights(case: Case) -> None:
    bijection = case.build()
    t = BijectionTransform(bijection, event_dim=len(case.input_shape))
    y = bijection(case.sample_input(2))[0].detach().requires_grad_()
    inputs = [y, *(p for p in bijection.parameters() if p.requires_grad)]
    cotangent = torch.randn(2, *case.input_shape, dtype=torch.float64)
    found = along_a_direction(lambda: (t.inv(y) * cotangent).sum(), inputs, 1e-6)
    assert found[1] == pytest.approx(found[0], rel=2e-4, abs=1e-4)
    assert abs(found[0]) > 1e-3, "a gradient of 0 hides errors"
