"""Log-determinants of every bijection of the tests, against autograd's Jacobian in float64.

A case draws an entry of tests/registry.py, float32 or float64, and a place: where the tests look,
far away, at 0, at the ends of its domain, or one entry of these. The weights of both sides are the
same, and so is x. A log-determinant must be right or refused; of the estimated ones, the mean.
"""

from __future__ import annotations

import copy
import math
import random
from functools import cache
from typing import Any

import torch
from torch import Tensor

import registry  # type: ignore[import-not-found]
from mintnet import Bijection, InversionError
from mintnet.bijections import TriangularBijection
from mintnet.solvers import REALS

CASES = {case.name: case for case in registry.CASES}
PLACES = ("span", "wide", "far", "zero", "ends", "one entry")
FAR = (20.0, 60.0, 80.0, 110.0, 300.0, 700.0, 1e3, 1e5)
DTYPES = {"float32": torch.float32, "float64": torch.float64}
TOLERANCES = {"float32": 1e-4, "float64": 1e-8}
"""Of the log-determinant, relative to its size and to the number of entries."""
DRAWS = 400
"""Estimates of which the mean is taken."""


def draw(rng: random.Random) -> dict[str, Any]:
    return {
        "entry": rng.choice(list(CASES)),
        "dtype": rng.choice(list(DTYPES)),
        "place": rng.choice(PLACES),
        "seed": rng.getrandbits(31),
    }


@cache
def pair(entry: str, dtype: str) -> tuple[Bijection, Bijection]:
    """A bijection in that dtype, and the same weights in float64."""
    bijection = CASES[entry].build().to(DTYPES[dtype])
    return bijection, copy.deepcopy(bijection).double()


def inputs(case: dict[str, Any], bijection: Bijection) -> Tensor:
    """Two samples."""
    entry, rng = CASES[case["entry"]], random.Random(case["seed"])
    x: Tensor = entry.sample_input(2, case["seed"] % 2**20)
    bounded = bijection.domain != REALS or entry.span[0] >= 0
    low, high = bijection.domain if bijection.domain != REALS else entry.span
    signs = torch.tensor([rng.choice((-1.0, 1.0)) for _ in range(x.numel())]).reshape(x.shape)
    if case["place"] in ("wide", "far") and not bounded:
        x = x * rng.uniform(1, 10) if case["place"] == "wide" else signs * rng.choice(FAR) * x.abs()
    elif case["place"] == "zero":
        x = torch.zeros_like(x).clamp(low, high) * signs
    elif case["place"] == "ends":
        inside = 10 ** rng.uniform(-17, -1) * (high - low)
        x = torch.where(signs > 0, high - inside, low + inside)
    elif case["place"] == "one entry":
        far = rng.choice((low, high)) if bounded else rng.choice((-1, 1)) * rng.choice(FAR)
        x.view(2, -1)[:, rng.randrange(x[0].numel())] = far
    return x.to(DTYPES[case["dtype"]])


def by_autograd(bijection: Bijection, x: Tensor, row_by_row: bool) -> Tensor:
    """log |det J| from the Jacobian of each part, (batch,).

    Of a triangular one the diagonal is taken: the decomposition that `slogdet` makes of a matrix
    loses all digits where its entries have very different sizes.
    """
    total = torch.zeros(len(x), dtype=torch.float64)
    for part in bijection.leaves():
        with torch.enable_grad():
            j = registry.jacobian(part.value, x, row_by_row)
        if isinstance(part, TriangularBijection):
            total += j.diagonal(dim1=1, dim2=2).abs().log().sum(1)
        else:
            total += torch.linalg.slogdet(j)[1]
        x = part.value(x).detach()
    return total


def run(case: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    entry = CASES[case["entry"]]
    bijection, reference = pair(case["entry"], case["dtype"])
    x = inputs(case, bijection)
    torch.manual_seed(case["seed"])
    try:
        log_det = bijection(x if entry.exact else x.repeat_interleave(DRAWS, 0))[1]
    except (ValueError, InversionError):
        return {"refused": 1}, []
    try:
        expected = by_autograd(reference, x.double(), entry.inverted)
    except InversionError:
        return {"without a reference": 1}, []
    allowed = torch.maximum(expected.abs(), torch.tensor(float(x[0].numel())))
    allowed = allowed * max(TOLERANCES[case["dtype"]], entry.tolerance)
    log_det = log_det.detach().double()
    if not entry.exact:
        log_det = log_det.reshape(2, DRAWS)
        allowed = allowed + 5 * log_det.std(1) / math.sqrt(DRAWS) + 1e-3
        log_det = log_det.mean(1)
    known = expected.isfinite()  # autograd's 1 − tanh² is 0 far out, where the slope is not
    wrong = ~log_det.isfinite() | (known & ((log_det - expected).abs() > allowed))
    counts = {"log-determinants": 2, "beyond autograd": int((~known).sum())}
    return counts, [
        f"log |det| {float(log_det[k])!r}, by autograd {float(expected[k])!r}, at {x[k].tolist()}"
        for k in wrong.nonzero().flatten().tolist()
    ]
