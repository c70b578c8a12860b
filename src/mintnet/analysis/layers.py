"""How an inversion went, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mintnet.bijections import Bijection, TriangularBijection
from mintnet.solvers import Solution


@dataclass(frozen=True)
class LayerRow:
    """One triangular layer in an inversion, with the parts without a number before it."""

    number: int  # counted from 1 at the image's side
    name: str
    median_steps: float
    most_steps: int
    residual: float  # the worst, as a share of the largest |z| that enters the layer's inverse
    failures: int  # samples that are not verified
    error: float | None = None  # root mean square difference to what entered on the way forward
    amplification: float | None = None  # the error, divided by that of the next layer


def solved_layers(net: Bijection) -> list[TriangularBijection]:
    """The layers that a solver is asked for; their places in this list are their numbers.

    Examples:
        >>> from mintnet import Flow
        >>> solved_layers(Flow.preset("digits").net)[0].name
        'lower MintLayer 1×8×8, K = 16'
    """
    return [leaf for leaf in net.leaves() if isinstance(leaf, TriangularBijection)]


def layer_numbers(leaves: Sequence[Bijection]) -> list[int]:
    """For each part the number of its layer: parts in between belong to the layer after them."""
    solved = torch.tensor([isinstance(leaf, TriangularBijection) for leaf in leaves])
    numbers = 1 + solved.cumsum(0) - solved.long()
    return numbers.clamp(max=max(1, int(solved.sum()))).tolist()


def layer_rows(
    net: Bijection, *solutions: Solution, errors: Sequence[float] = ()
) -> list[LayerRow]:
    """The layers of a solved net, from the image's side on.

    Args:
        net: a chain, or a net with one.
        solutions: of inverting it, one for each batch; parts are in the order of inversion.
        errors: the error at the input of each layer, if it was measured.

    Examples:
        >>> from mintnet import Flow
        >>> flow = Flow.preset("digits")
        >>> rows = layer_rows(flow.net, flow.solve(flow.sample_latents(3, seed=0)))
        >>> len(rows), rows[0].number, rows[0].failures
        (12, 1, 0)
    """
    leaves, rows = net.leaves(), []
    failures = dict.fromkeys(range(1, len(leaves) + 1), 0)
    for place, (leaf, number) in enumerate(zip(leaves, layer_numbers(leaves), strict=True)):
        parts = [solution.parts[-1 - place] for solution in solutions]
        failures[number] += sum(int((~part.converged).sum()) for part in parts)
        if not isinstance(leaf, TriangularBijection):
            continue
        steps = torch.cat([part.steps for part in parts]).double()
        residual = float(torch.cat([part.residual for part in parts]).max())
        error, after = (*errors[number - 1 : number + 1], None, None)[:2]
        grown = error / after if error is not None and after else None
        median, most = float(steps.median()), int(steps.max())
        rows.append(
            LayerRow(number, parts[0].name, median, most, residual, failures[number], error, grown)
        )
    return rows


def residual_check(net: Bijection, solution: Solution) -> dict[str, Any]:
    """The residual check of an inversion as plain data."""
    worst = max(layer_rows(net, solution), key=lambda row: row.residual, default=None)
    return {
        "samples": len(solution.residual),
        "verified": int(solution.converged.sum()),
        "end_to_end_residual": float(solution.residual.max()),
        "worst_layer_residual": worst.residual if worst else None,
        "worst_layer": worst.number if worst else None,
    }
