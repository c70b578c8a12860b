"""Verified inverses: each sample checked by a float64 copy of the module, apart from our own check.

A case is a bijection of the registry's kinds with weights of some size, samples z of many sizes, a
solver and a dtype. Wrong is a verified sample that is not finite, not in the domain, or off by more
than the tolerance times its own max |z| (for z = 0, max |f(0)|).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import mintnet as mn
from mintnet import calculus as ca
from mintnet.solvers import Solver

SIZES = (1, 16, 256, 2048, 8192)
GAINS = (0.1, 1.0, 3.0, 30.0, 1e3, 1e6)
SCALES = (0.0, 1e-30, 1e-12, 1e-6, 1e-4, 1e-2, 1.0, 1.0, 1.0, 10.0, 1e3, 1e6, 1e12, 1e30)
SOLVERS: dict[str, Callable[[], Solver]] = {
    "auto": mn.Auto,
    "wavefront": mn.Wavefront,
    "fixed point": mn.FixedPoint,
    "damped": lambda: mn.FixedPoint(damped=True, max_steps=300),
    "bisection": mn.Bisection,
    "eager": lambda: mn.FixedPoint(keep_trace=True),  # on a GPU, steps that are not captured
}
TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-12}
CHAIN_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
ROUNDING = {torch.float32: 1e-9, torch.float64: 4e-12}
PIXELS = 1e-6  # of layers of grey levels in float64
"""What another order of sums may add to a residual in float64, in units."""


def _composed(function: ca.Function, shape: tuple[int, ...]) -> mn.Bijection:
    return mn.Composed(function, shape, insist=False)


KINDS: dict[str, Callable[[], mn.Bijection]] = {
    "mint-elu": lambda: mn.MintLayer(2, 2, (3, 3)),
    "mint-upper-tanh": lambda: mn.MintLayer(1, 3, (4, 4), True, "tanh"),
    "mint-softplus": lambda: mn.MintLayer(3, 1, (2, 2), activation="softplus"),
    "mint-leaky": lambda: mn.MintLayer(2, 2, (2, 3), True, "leaky_relu", t_form="absolute"),
    "mixture": lambda: mn.MixtureLayer(1, 3, (3, 3), blocks=1, components=2),
    "mixture-levels": lambda: mn.MixtureLayer(2, 2, (3, 3), 1, 2, levels=256),
    "mixture-pixel": lambda: mn.MixtureLayer(3, 2, (3, 2), 1, 2, order="pixel"),
    "mixture-vector": lambda: mn.MixtureLayer(4, 3, (), blocks=1, components=2, upper=True),
    "softplus": lambda: _composed(ca.Softplus() @ ca.Identity(), (3,)),
    "exp": lambda: _composed(ca.Identity() + ca.Exp(), (2,)),
    "tanh": lambda: _composed(ca.Tanh() @ ca.Identity(), (2,)),
    "wiggle": lambda: _composed(3.0 * ca.Identity() + ca.Tanh(), (4,)),
    "dense": lambda: mn.Composed(ca.MaskedLinear(3), (3,), insist=True),
    "nice": lambda: mn.NICECoupling((4,), "channel", hidden=3),
    "real-nvp": lambda: mn.RealNVPCoupling((2, 2, 2), hidden=3, scale="exp"),
    "maf": lambda: mn.MAF((5,), 2),
    "emerging": lambda: mn.EmergingFactor(2, (3, 3)),
    "macow": lambda: mn.MaCowLayer((1, 3, 3), hidden=2),
    "i-resnet": lambda: mn.IResNetBlock((4,), 4, 0.9),
    "act-norm": lambda: mn.ActNorm(2),
    "logit": lambda: mn.Logit(0.05),
    "chain": lambda: mn.Chain(
        mn.MintLayer(1, 2, (2, 2)), mn.Squeeze(2, (1, 2, 2)), mn.MintLayer(4, 1, (1, 1), True)
    ),
}
SHAPES = {"logit": (3,), "act-norm": (2, 2, 2)}
CHAINS = ("chain",)


def draw(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(sorted(KINDS))
    analytic = kind in ("act-norm", "logit", "i-resnet", "chain")
    solver = "auto" if analytic else rng.choice(sorted(SOLVERS))
    return {
        "kind": kind,
        "solver": solver,
        "dtype": rng.choice(("float32", "float32", "float64")),
        "gain": rng.choice(GAINS),
        "offset": rng.choice((0.0, 1.0, 1e3, 1e6)),
        "samples": rng.choice(SIZES[:2] if solver == "bisection" else SIZES),
        "scales": [rng.choice(SCALES) for _ in range(4)],
        "reachable": rng.random() < 0.6,
        "seed": rng.getrandbits(31),
    }


@torch.no_grad()
def build(case: dict[str, Any]) -> mn.Bijection:
    """The bijection of a case, in evaluation mode and float32 with extreme weights."""
    torch.manual_seed(case["seed"])
    bijection = KINDS[case["kind"]]().eval()
    for name, weight in bijection.named_parameters():
        wide = case["offset"] if "bias" in name or "shift" in name else case["gain"]
        factor = torch.randn_like(weight) * wide
        if name.endswith(("log_scale", "raw_t")):
            factor = factor.clamp(-10, 10)
        weight.copy_(factor)
    if case["kind"] == "dense":  # anything below the diagonal, which is what makes it triangular
        weight = next(bijection.parameters())
        weight.diagonal().copy_(weight.diagonal().abs() + 1e-3)
    return bijection.to(getattr(torch, case["dtype"]))


def targets(case: dict[str, Any], bijection: mn.Bijection) -> Tensor:
    """z of samples at several scales, images of random x or not."""
    out = bijection.output_shape or SHAPES[case["kind"]]
    shape = bijection.event_shape or out
    count = case["samples"]
    scale = torch.tensor([case["scales"][i % 4] for i in range(count)], dtype=torch.float64)
    x = torch.randn(count, *shape, dtype=torch.float64)
    x = x * scale.reshape(-1, *(1,) * len(shape))
    z = x.reshape(count, *out)
    if case["reachable"] and case["kind"] != "logit":
        with torch.no_grad():
            image = bijection.value(x.to(getattr(torch, case["dtype"]))).double()
        z = torch.where(image.isfinite(), image, z)
    return z.to(getattr(torch, case["dtype"]))


@torch.no_grad()
def run(case: dict[str, Any], device: str = "cpu") -> tuple[dict[str, int], list[str]]:
    try:
        bijection = build(case)
        z = targets(case, bijection).to(device)
        bijection = bijection.to(device)
        found = bijection.solve(z, SOLVERS[case["solver"]]())
    except mn.NotProvedError:
        return {"refused": 1}, []
    ok = found.converged
    wrong = unverified_reasons(bijection, z, found, case["kind"] in CHAINS)
    counts = {
        "solves": len(z),
        "verified": int(ok.sum()),
        f"{case['kind']} verified": int(ok.sum()),
    }
    return counts, wrong


def unverified_reasons(
    bijection: nn.Module, z: Tensor, found: mn.Solution, chain: bool
) -> list[str]:
    """A line for each verified sample that is not what verified states."""
    tolerance = (CHAIN_TOLERANCE if chain else TOLERANCE)[z.dtype] + ROUNDING[z.dtype]
    double = copy.deepcopy(bijection).double()
    assert isinstance(double, mn.Bijection)
    if z.dtype == torch.float64 and any(getattr(leaf, "levels", 0) for leaf in double.leaves()):
        tolerance = PIXELS
    ok = found.converged
    x, target = found.value[ok], z[ok].double()
    order = torch.randperm(len(x), device=x.device)  # other neighbours than in the solve
    image = target.clone()
    for some in order.split(64):
        image[some] = double.value(x[some].double())
    gap = (image - target).abs().flatten(1).amax(1)
    unit = target.abs().flatten(1).amax(1)
    if bool((unit == 0).any()):
        zero = double.value(torch.zeros_like(x[:1]).double()).abs().max()
        unit = torch.where(unit == 0, zero.clamp(min=1e-300), unit)
    low, high = double.domain
    inside = (x.isfinite() & (x >= low) & (x <= high)).flatten(1).all(1)
    bad = ~inside | ~(gap <= tolerance * unit)
    return [
        f"verified sample {i}: |f(x) - z| = {gap[i]:.3g}, unit {unit[i]:.3g}, x = {x[i].tolist()}"
        for i in bad.nonzero().flatten().tolist()[:5]
    ]
