"""Theorem 2: eigenvalues and powers of the iteration's matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from figures_src.parts import ORANGE, TEAL, VIOLET, Facts, Picture, noise, panels, redraw
from mintnet import MintLayer
from mintnet.figures.style import Theme
from mintnet.solvers.schedule import level_of

STEPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.1)


def theorem2() -> Picture:
    """The iteration's Jacobian at the root: its eigenvalues, its powers, what is observed."""
    layers = {
        "weak": redraw(MintLayer(1, 4, (6, 6)), 0.5),
        "strong": redraw(MintLayer(1, 4, (6, 6)), 2.0),
    }
    root = noise(1, 1, 6, 6, seed=5)
    off, observed, facts = 0.0, {name: {} for name in layers}, Facts()
    for name, layer in layers.items():
        for step in STEPS:
            eigenvalues = torch.linalg.eigvals(iteration_jacobian(layer, root, step))
            off = max(off, float((eigenvalues - (1 - step)).abs().max()))
            observed[name][step] = observed_factor(layer, root, step)
    facts.append(f"eigenvalues of the iteration's Jacobian, largest distance from 1 − α: {off:.1e}")
    facts += [
        f"| {step:g} | {abs(1 - step):.2f} "
        f"| {observed['weak'][step]:.2f} | {observed['strong'][step]:.2f} |"
        for step in STEPS
    ]
    count = 60
    jacobian = torch.autograd.functional.jacobian(
        lambda x: layers["strong"].evaluate(x.reshape(root.shape))[0].flatten(), root.flatten()
    )
    nilpotent = torch.eye(len(jacobian)) - jacobian / jacobian.diagonal()[:, None]
    index = next(n for n in range(1, 99) if not bool(torch.matrix_power(nilpotent, n).any()))
    powers = {
        step: norms_of_powers(iteration_jacobian(layers["strong"], root, step), count)
        for step in (0.5, 1.0, 1.5)
    }
    depth = 1 + int(level_of((1, 6, 6), 1).max())
    facts.append(f"α = 1: power {index} of the Jacobian is exactly 0; the layer has {depth} levels")
    facts += [
        f"α = {step:g}: largest norm of a power {max(norms):.0f}, at n = {norms.index(max(norms))}"
        for step, norms in powers.items()
    ]

    def draw(axes: Any, theme: Theme) -> None:
        left, right = panels(axes, 1, 2)
        grid = torch.linspace(0, 2.3, 100)
        left.plot(
            grid,
            (1 - grid).abs(),
            color=theme.quiet,
            linewidth=1.5,
            label="|1 − α|, the eigenvalue",
        )
        left.axhline(1, color=theme.quiet, linewidth=0.8, linestyle=":")
        for (name, factors), colour, marker in zip(
            observed.items(), (TEAL, ORANGE), "os", strict=True
        ):
            left.plot(
                list(factors),
                list(factors.values()),
                marker,
                color=colour,
                label=f"observed, {name} weights",
            )
        left.set(
            xlabel="α",
            ylabel="factor of the error, per step",
            title="Where it ends",
            ylim=(0, 2.25),
        )
        left.legend(loc="upper left", fontsize=9)
        for (step, norms), colour in zip(powers.items(), (VIOLET, TEAL, ORANGE), strict=True):
            kept = [n for n in range(count) if norms[n] > 1e-9]
            right.semilogy(kept, [norms[n] for n in kept], color=colour, label=f"α = {step:g}")
        right.semilogy(
            [0, count], [1, 0.5**count], "--", color=theme.quiet, linewidth=1, label="0.5ⁿ"
        )
        right.set(
            xlabel="n",
            ylabel="norm of the n-th power",
            title="What happens before (strong weights)",
            ylim=(1e-6, 1e6),
            xlim=(0, count),
        )
        right.legend(fontsize=9, ncols=2, loc="upper right")

    return Picture("theorem-2", draw, (8.2, 3.4), facts)


def iteration(layer: MintLayer, root: Tensor, step: float) -> Callable[[Tensor], Tensor]:
    """One step of Algorithm 1 for the target z = f(root)."""
    z = layer.evaluate(root)[0].detach()

    def advance(x: Tensor) -> Tensor:
        y, slope = layer.evaluate(x.reshape(root.shape))
        return x - step * ((y - z) / slope).reshape(x.shape)

    return advance


def iteration_jacobian(layer: MintLayer, root: Tensor, step: float) -> Tensor:
    return torch.autograd.functional.jacobian(iteration(layer, root, step), root.flatten())


@torch.no_grad()
def observed_factor(layer: MintLayer, root: Tensor, step: float) -> float:
    """By how much the error shrinks a step, over the later half of the way to rounding."""
    advance = iteration(layer, root, step)
    x = root + 1e-6 * noise(*root.shape, seed=6)
    errors = []
    for _ in range(400):
        errors.append(float((x - root).abs().max()))
        if not 1e-11 < errors[-1] < 1e-1:  # rounding, amplified, stays below
            break
        x = advance(x)
    last = len(errors) - 1
    half = max(last // 2, 1)
    return (errors[last] / errors[last - half]) ** (1 / half)


def norms_of_powers(matrix: Tensor, count: int) -> list[float]:
    power, norms = torch.eye(len(matrix), dtype=matrix.dtype), []
    for _ in range(count):
        norms.append(float(torch.linalg.matrix_norm(power, 2)))
        power = matrix @ power
    return norms
