"""FlowDensity among scikit-learn's estimators."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from mintnet.sklearn import FlowDensity


def small(**options: object) -> FlowDensity:
    return FlowDensity(members=2, max_steps=20, filters=4, **options)


@pytest.mark.filterwarnings("ignore")
def test_it_is_an_estimator() -> None:
    check_estimator(small(random_state=0))


def test_a_random_state_is_a_model_and_its_samples() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3))
    first, second, other = (small(random_state=seed).fit(rows) for seed in (1, 1, 2))
    assert np.array_equal(first.score_samples(rows), second.score_samples(rows))
    assert np.array_equal(first.sample(7), second.sample(7))
    assert not np.array_equal(first.score_samples(rows), other.score_samples(rows))
    assert first.score(rows) == pytest.approx(first.score_samples(rows).mean())
    assert not np.array_equal(first.sample(7), first.sample(7, random_state=5))
    for count in (-1, 0, 1.5):
        with pytest.raises(ValueError, match="n_samples is a whole number of at least 1; got"):
            first.sample(count)


def test_it_can_be_cross_validated_and_prefers_its_own_kind() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 1)) * [1.0, -2.0] + 0.3 * rng.normal(size=(60, 2))
    assert np.isfinite(cross_val_score(small(random_state=0), rows, cv=2)).all()
    fitted = small(random_state=0).fit(rows)
    assert fitted.score(rows) > fitted.score(rows * [1.0, -1.0]) + 1
