"""The distribution of z: standard normal, or standard logistic, entry by entry."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


class Normal:
    """N(0, 1), entry by entry.

    What needs Gaussian codes (a temperature, the interpolation of the paper) goes through
    `to_normal`, the increasing map that makes z standard normal, and its inverse `from_normal`.

    Examples:
        >>> z = torch.tensor([-30.0, 0.5, 4.0])
        >>> for base in BASES.values():
        ...     print(bool(torch.allclose(base.from_normal(base.to_normal(z)), z, rtol=1e-4)))
        True
        True
    """

    def log_prob(self, z: Tensor) -> Tensor:
        """The log-density of each entry, of the shape of z."""
        return -0.5 * (z * z + math.log(2 * math.pi))

    def to_normal(self, z: Tensor) -> Tensor:
        return z

    def from_normal(self, u: Tensor) -> Tensor:
        return u


class Logistic(Normal):
    """The density σ(z) σ(−z): the natural base of mixture layers."""

    def log_prob(self, z: Tensor) -> Tensor:
        return F.logsigmoid(z) + F.logsigmoid(-z)

    def to_normal(self, z: Tensor) -> Tensor:
        """Φ⁻¹(σ(z)), computed in the lower tail, where σ(z) does not round to 1."""
        below: Tensor = torch.special.ndtri(torch.sigmoid(-z.abs().double()))
        return (below * -z.sign()).to(z.dtype)

    def from_normal(self, u: Tensor) -> Tensor:
        """logit Φ(u) = log Φ(u) − log Φ(−u)."""
        below, above = torch.special.log_ndtr(torch.stack([u, -u]).double())
        found: Tensor = below - above
        return found.to(u.dtype)


BASES: dict[str, Normal] = {"normal": Normal(), "logistic": Logistic()}
