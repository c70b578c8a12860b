"""The residual check of inverses that no solver of triangular systems finds."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet.bijections.base import Bijection
from mintnet.solvers import TOLERANCES, Solution, Status, relative_residual
from mintnet.solvers.base import reference_scale
from mintnet.solvers.solution import fill_failures


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
    close = residual <= max(TOLERANCES.get(z.dtype, 0.0), tolerance)
    status = torch.as_tensor(status, device=z.device)
    status = torch.where(status == Status.CONVERGED, int(Status.INACCURATE), status)
    status = torch.where(close, int(Status.CONVERGED), status)
    status = torch.where(z.flatten(1).isfinite().all(1), status, int(Status.NOT_FINITE))
    none, value = torch.zeros_like(status), fill_failures(value, status)
    name = type(bijection).__name__
    return Solution(name, value, status, residual, none + steps, none + evaluations + 1)
