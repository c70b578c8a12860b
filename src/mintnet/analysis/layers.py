"""How an inversion went, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mintnet.bijections import Bijection, TriangularBijection
from mintnet.solvers import Solution

Progress = Callable[[int, int], None]
"""Called with how much is done, and how much there is in all."""


@dataclass(frozen=True)
class LayerRow:
    """One triangular layer of a net, with the parts without a number before it, in an inversion.

    Attributes:
        number: counted from 1 at the image's side.
        name: what it is.
        median_steps: the median over the samples.
        most_steps: the largest number over the samples.
        residual: the worst, as a share of the largest |z| that enters the layer's inverse.
        failures: samples that are not verified.
        error: root mean square of the difference to what entered on the way forward, if known.
        amplification: the error, divided by that of the next layer, which is inverted before.
    """

    number: int
    name: str
    median_steps: float
    most_steps: int
    residual: float
    failures: int
    error: float | None = None
    amplification: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def leaves_of(net: Bijection) -> list[Bijection]:
    """The parts of a net, in the order in which they are applied."""
    chain: Any = getattr(net, "chain", net)
    return list(chain.leaves())


def solved_layers(net: Bijection) -> list[TriangularBijection]:
    """The layers that a solver is asked for, whose places in this list are their numbers.

    Examples:
        >>> [layer.name for layer in solved_layers(Flow.preset("digits").net)][0]
        'lower MintLayer 1×8×8, K = 16'
    """
    return [leaf for leaf in leaves_of(net) if isinstance(leaf, TriangularBijection)]


def layer_numbers(leaves: Sequence[Bijection]) -> list[int]:
    """For each part the number of its layer: parts in between belong to the layer after them."""
    numbers, number = [], 1
    last = sum(isinstance(leaf, TriangularBijection) for leaf in leaves)
    for leaf in leaves:
        numbers.append(min(number, max(1, last)))
        number += isinstance(leaf, TriangularBijection)
    return numbers


def layer_rows(
    net: Bijection, *solutions: Solution, errors: Sequence[float] | None = None
) -> list[LayerRow]:
    """The layers of a solved net, from the image's side on.

    Args:
        net: a chain, or a net with one.
        solutions: of inverting it, one for each batch; parts are in the order of inversion.
        errors: the error at the input of each layer, if it was measured.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> rows = layer_rows(flow.net, flow.solve(flow.sample_latents(3, seed=0)))
        >>> len(rows), rows[0].number, rows[0].failures
        (12, 1, 0)
    """
    leaves = leaves_of(net)
    batches = [list(reversed(solution.parts)) for solution in solutions]
    failures = dict.fromkeys(range(1, len(leaves) + 1), 0)
    rows = []
    for place, (leaf, number) in enumerate(zip(leaves, layer_numbers(leaves), strict=True)):
        parts = [batch[place] for batch in batches]
        failures[number] += sum(int((~part.converged).sum()) for part in parts)
        if not isinstance(leaf, TriangularBijection):
            continue
        steps = torch.cat([part.steps for part in parts])
        residual = torch.cat([part.residual for part in parts])
        error = errors[number - 1] if errors else None
        after = errors[number] if errors and number < len(errors) else None
        rows.append(
            LayerRow(
                number,
                parts[0].name,
                float(steps.double().median()),
                int(steps.max()),
                float(residual.max()),
                failures[number],
                error,
                error / after if error is not None and after else None,
            )
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
