"""`mintnet bench properties`: the paper's table of properties, found by checks on small networks.

Each property is what its check says, no more:

- *analytic forward*: f(x) takes the same operations for every x and in float32 and float64, and no
  setting of an integrator or a solver changes it;
- *analytic inverse*: each layer is undone by a formula. That is a layer whose inverse takes no
  iterations, or a triangular one that is affine in each entry's own coordinate, where the longest
  chain of entries that must be solved one after another does not grow with the image;
- *non-volume preserving*: log |det J| is not 0 everywhere;
- *exact likelihood*: log |det J| equals that of autograd's Jacobian in float64, and is the same
  when it is computed again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mintnet import (
    FFJORD,
    MAF,
    Bijection,
    Chain,
    EntryScaling,
    IResNetBlock,
    NICECoupling,
    RealNVPCoupling,
    Reshape,
    Squeeze,
    glow_step,
    iaf,
    macow_unit,
    paired_mint,
)
from mintnet.bijections import TriangularBijection
from mintnet.cli.command import Command
from mintnet.cli.output import console

from .timing import Note, silent

PROPERTIES = ("analytic forward", "analytic inverse", "non-volume preserving", "exact likelihood")

PAPER: dict[str, tuple[bool, bool, bool, bool]] = {
    "NICE": (True, True, False, True),
    "Real NVP": (True, True, True, True),
    "Glow": (True, False, True, True),
    "MaCow": (True, False, True, True),
    "FFJORD": (False, False, True, False),
    "i-ResNet": (True, False, True, False),
    "MintNet": (True, False, True, True),
}
"""The paper's comparison of invertible models (its appendix), in the order of `PROPERTIES`."""

SIZES = (4, 8)
"""Side lengths of the images: whether something grows is seen from one to the other."""


@dataclass(frozen=True)
class Finding:
    """What a check found, with its evidence in words."""

    holds: bool
    evidence: str


@torch.no_grad()
def bench_properties(note: Note = silent) -> dict[str, Any]:
    """Run every check on every model, and list the differences from the paper's table."""
    table: dict[str, dict[str, Any]] = {}
    for name, make in MODELS.items():
        note(name)
        small, large = (_with_weights(make(size)) for size in SIZES)
        findings = (
            analytic_forward(small),
            analytic_inverse(small, large),
            non_volume_preserving(small),
            exact_likelihood(small),
        )
        table[name] = {
            title: {"holds": finding.holds, "evidence": finding.evidence}
            for title, finding in zip(PROPERTIES, findings, strict=True)
        }
    differences = [
        f"{name}, {title}: {'yes' if table[name][title]['holds'] else 'no'} here, "
        f"{'yes' if said else 'no'} in the paper"
        for name, row in PAPER.items()
        for title, said in zip(PROPERTIES, row, strict=True)
        if table[name][title]["holds"] != said
    ]
    return {"models": table, "differences": differences, "sizes": SIZES}


def analytic_forward(net: Bijection) -> Finding:
    """The same operations for every input and precision, and no setting that matters."""
    x, counts = _inputs(net), set()
    for dtype in (torch.float32, torch.float64):
        net.to(dtype).transform(x.to(dtype))  # what is computed once for the weights
        counts |= {_operations(net, (size * x).to(dtype)) for size in (0.1, 1.0, 10.0)}
    if len(counts) > 1:
        return Finding(False, f"from {min(counts)} to {max(counts)} operations")
    change = _change_with_settings(net, x)
    if change > 1e-10:
        return Finding(False, f"changes by {change:.0e} with finer steps")
    return Finding(True, f"{counts.pop()} operations, always")


def analytic_inverse(small: Bijection, large: Bijection) -> Finding:
    """Every layer is undone by a formula; the two networks differ in the size of the image."""
    longest, x, wide = 0, _inputs(small), _inputs(large)
    for few, many in zip(_leaves(small), _leaves(large), strict=True):
        kind = type(few).__name__
        if isinstance(few, TriangularBijection):
            if not _affine_in_its_own(few, x[:1]):
                return Finding(False, f"{kind} is no affine map of an entry")
            chain, longer = chain_length(few, x), chain_length(many, wide)
            if longer > chain:
                grows = f"{chain} at {SIZES[0]} × {SIZES[0]}, {longer} at {SIZES[1]} × {SIZES[1]}"
                return Finding(False, f"{kind}: a chain of {grows}")
            longest = max(longest, chain)
        x, wide = few.transform(x)[0], many.transform(wide)[0]
        if not isinstance(few, TriangularBijection):
            steps = int(few.solve(x).steps.max())
            if steps > 0:
                return Finding(False, f"{kind} iterates, {steps} steps in float64")
    return Finding(True, f"chains of at most {longest} at both sizes" if longest else "a formula")


def non_volume_preserving(net: Bijection) -> Finding:
    """log |det J| is not 0 everywhere."""
    found = net.transform(_inputs(net))[1]
    low, high = float(found.min()), float(found.max())
    same = "the same everywhere" if high - low < 1e-9 else "different from x to x"
    if max(abs(low), abs(high)) < 1e-9:
        return Finding(False, "log |det J| = 0")
    return Finding(True, f"log |det J| up to {max(abs(low), abs(high)):.2g}, {same}")


def exact_likelihood(net: Bijection) -> Finding:
    """log |det J| is autograd's, and the same each time."""
    x = _inputs(net)[:2]
    expected = torch.linalg.slogdet(jacobian(net, x))[1]
    first, again = net.transform(x)[1], net.transform(x)[1]
    error, spread = float((first - expected).abs().max()), float((first - again).abs().max())
    return Finding(error < 1e-8 and spread == 0, f"error {error:.0e}, {spread:.0e} between calls")


def chain_length(layer: Bijection, x: Tensor) -> int:
    """The most entries that must be solved one after another: the index of I − diag(J)⁻¹ J."""
    seen = jacobian(layer, x[:1])[0] != 0
    before = (seen & ~torch.eye(len(seen), dtype=torch.bool)).double()
    reached, length = torch.ones(len(seen), dtype=torch.float64), 0
    while bool(reached.any()):
        reached, length = ((before @ reached) > 0).double(), length + 1
    return length


def jacobian(net: Bijection, x: Tensor) -> Tensor:
    """The dense Jacobians at x by autograd, (batch, D, D)."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        y = net.transform(at)[0].flatten(1)
        rows = [
            torch.autograd.grad(y[:, i].sum(), at, retain_graph=True)[0].flatten(1)
            for i in range(y.shape[1])
        ]
    return torch.stack(rows, 1)


def _affine_in_its_own(layer: Bijection, x: Tensor) -> bool:
    """Whether slopes stay the same when each entry's own coordinate moves, the others fixed."""
    points = x.flatten(1).repeat(x[0].numel(), 1)  # row i is for entry i

    def own_slopes(at: Tensor) -> Tensor:
        with torch.enable_grad():
            at = at.clone().requires_grad_()
            y = layer.transform(at.reshape(-1, *x.shape[1:]))[0].flatten(1)
            return torch.autograd.grad(y.diagonal().sum(), at)[0].diagonal()

    moved = own_slopes(points + torch.eye(len(points), dtype=x.dtype))
    return bool(torch.allclose(moved, own_slopes(points), rtol=1e-5, atol=1e-9))


class _Counter(TorchDispatchMode):
    """How many operations of PyTorch run inside."""

    count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _operations(net: Bijection, x: Tensor) -> int:
    counter = _Counter()  # type: ignore[no-untyped-call]
    with counter:
        net.transform(x)
    return counter.count


def _change_with_settings(net: Bijection, x: Tensor) -> float:
    """How much f(x) moves when integrators take twice the steps and series twice the terms."""
    plain, finer = net.transform(x)[0], copy.deepcopy(net)
    for module in finer.modules():
        if isinstance(module, FFJORD):
            module.steps, module.tolerance = 2 * module.steps, module.tolerance / 10
        elif isinstance(module, IResNetBlock):
            module.terms *= 2
    return float((finer.transform(x)[0] - plain).abs().max())


def _inputs(net: Bijection) -> Tensor:
    assert net.event_shape is not None
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, *net.event_shape, generator=generator, dtype=torch.float64)


def _leaves(net: Bijection) -> list[Bijection]:
    return net.leaves() if isinstance(net, Chain) else [net]


def _with_weights(net: Bijection) -> Bijection:
    """In float64 and evaluation mode, with weights well away from 0: fresh layers hide much."""
    generator = torch.Generator().manual_seed(0)
    for parameter in net.double().parameters():
        unit = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2.0 - 1
        width = parameter[0].numel() if parameter.dim() > 1 else 4
        parameter.data.copy_((0.4 + 0.6 * unit) * sign / width**0.5)
    return net.eval()


def _vectors(make: Callable[[int], Bijection]) -> Callable[[int], Bijection]:
    return lambda size: Chain(Reshape((1, size, size), (size * size,)), make(size * size))


def _couplings(kind: Any) -> Callable[[int], Bijection]:
    return lambda size: Chain(
        *(kind((1, size, size), upper=upper, hidden=8) for upper in (False, True))
    )


def _glow(size: int, mixing: str = "1x1") -> Bijection:
    step = glow_step(4, (size // 2, size // 2), 8, mixing)
    return Chain(Squeeze(2, (1, size, size)), step)


MODELS: dict[str, Callable[[int], Bijection]] = {
    "NICE": _couplings(NICECoupling),
    "NICE with its scaling layer": lambda size: Chain(
        _couplings(NICECoupling)(size), EntryScaling((1, size, size))
    ),
    "Real NVP": _couplings(RealNVPCoupling),
    "Glow": _glow,
    "Emerging": lambda size: _glow(size, "emerging"),
    "MaCow": lambda size: macow_unit((1, size, size), 8),
    "MAF": _vectors(lambda features: MAF((features,))),
    "MAF, convolutional": lambda size: MAF((1, size, size), 4),
    "IAF": _vectors(lambda features: iaf((features,))),
    "MintNet": lambda size: paired_mint(1, 4, (size, size)),
    "i-ResNet": lambda size: IResNetBlock((1, size, size), 8),
    "FFJORD": lambda size: FFJORD((1, size, size), 8, "rk4"),
}


@dataclass(kw_only=True)
class Properties(Command):
    """Find the properties of each family of flows by checks, and compare with the paper's table."""

    evidence: bool = False
    """Print what each check found."""

    def run(self) -> dict[str, Any]:
        out = console()
        figures = bench_properties(note=lambda line: out.print(line, style="dim"))
        table = Table("model", *PROPERTIES)
        for name, row in figures["models"].items():
            cells = ["yes" if row[title]["holds"] else "no" for title in PROPERTIES]
            if self.evidence:
                found = (row[title]["evidence"] for title in PROPERTIES)
                cells = [f"{cell}: {words}" for cell, words in zip(cells, found, strict=True)]
            table.add_row(name, *cells)
        out.print(table)
        for line in figures["differences"]:
            out.print(f"differs: {line}")
        return figures
