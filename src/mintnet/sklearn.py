"""A density estimator for scikit-learn: tables of any width through triangular flows."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from mintnet.tables import fit_table


class FlowDensity(DensityMixin, BaseEstimator):  # type: ignore[misc]
    """The density of the rows of a table, by a mixture of small flows and of Gaussians.

    Training ends early by held-out rows, which also weigh the members, and the same
    ``random_state`` gives the same model. All other parameters are those of
    `mintnet.tables.fit_table`. ``model_`` is the fitted `TableModel`, which has ``save``.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(60, 2))
        >>> density = FlowDensity(members=2, max_steps=40, random_state=0).fit(rows)
        >>> density.score_samples(rows).shape, density.sample(5).shape
        ((60,), (5, 2))
    """

    def __init__(
        self,
        members: int = 8,
        filters: int | None = None,
        max_steps: int = 1500,
        random_state: Any = None,
    ) -> None:
        self.members, self.filters, self.max_steps = members, filters, max_steps
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the density to rows (n, D)."""
        rows = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        options = self.get_params()
        seed = int(check_random_state(options.pop("random_state")).randint(2**31 - 1))
        names = getattr(self, "feature_names_in_", np.arange(rows.shape[1]))
        self.model_ = fit_table(rows, [str(name) for name in names], **options, seed=seed)
        return self

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """log p of each row, in nats, (n,)."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(self.model_.log_prob(torch.tensor(rows)))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of log p over the rows."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> NDArray[np.float64]:
        """New rows, (n_samples, D), from ``random_state`` or else that of the estimator."""
        check_is_fitted(self)
        if not isinstance(n_samples, int | np.integer) or n_samples < 1:
            raise ValueError(f"n_samples is a whole number of at least 1; got {n_samples!r}")
        given = self.random_state if random_state is None else random_state
        seed = int(check_random_state(given).randint(2**31 - 1))
        return np.asarray(self.model_.sample(int(n_samples), seed))
