"""The residual check of inverses that no solver of triangular systems finds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mintnet.solvers import TOLERANCES, Solution, Status, relative_residual
from mintnet.solvers.base import reference_scale
from mintnet.solvers.solution import fill_failures


def checked(
    name: str,
    value: Tensor,
    z: Tensor,
    forward: Callable[[Tensor], Tensor],
    steps: Tensor,
    evaluations: Tensor,
    failure: Tensor | Status = Status.OUT_OF_STEPS,
    tolerance: float = 0.0,
) -> Solution:
    """The solution of ``forward``(x) = z with this value, verified or not sample by sample.

    Args:
        name: for messages.
        value: x.
        z: what was to be reached.
        forward: the map.
        steps: (batch,).
        evaluations: (batch,), without that of the check.
        failure: the status of samples that are not verified.
        tolerance: of the relative residual, where it is larger than that of the dtype.
    """
    residual = relative_residual(forward(value) - z, reference_scale(forward, z, z))
    close = residual <= max(TOLERANCES.get(z.dtype, 0.0), tolerance)
    status = torch.where(close, int(Status.CONVERGED), torch.as_tensor(failure, device=z.device))
    status = torch.where(z.flatten(1).isfinite().all(1), status, int(Status.NOT_FINITE))
    return Solution(name, fill_failures(value, status), status, residual, steps, evaluations + 1)
