"""The residual check of inverses that no solver of triangular systems finds."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet.bijections.base import Bijection
from mintnet.solvers import TOLERANCES, Solution, Status, relative_residual, solution
from mintnet.solvers.base import reference_scale


def checked(
    bijection: Bijection,
    value: Tensor,
    z: Tensor,
    steps: Tensor | int,
    evaluations: Tensor | int,
    status: Tensor | Status = Status.OUT_OF_STEPS,
    tolerance: float = 0.0,
) -> Solution:
    """The solution of f(x) = z with x = ``value``, verified or not sample by sample.

    ``evaluations`` and ``status`` are those before the check; ``tolerance`` is that of the relative
    residual where the dtype's is smaller.
    """
    residual = relative_residual(bijection.value(value) - z, reference_scale(bijection.value, z, z))
    failure = torch.as_tensor(status, device=z.device)
    failure = torch.where(failure == Status.CONVERGED, int(Status.INACCURATE), failure)
    failure = torch.where(z.flatten(1).isfinite().all(1), failure, int(Status.NOT_FINITE))
    name, most = type(bijection).__name__, max(TOLERANCES.get(z.dtype, 0.0), tolerance)
    return solution.checked(name, value, residual, most, steps, evaluations + 1, failure)
