"""Draw the figures of the pages "The ideas" and "Solvers" with the library itself.

    python docs/draw_figures.py [--out FOLDER] [--kind svg|png] [--fast]

It also prints every number that the two pages quote. With --fast it takes one sample and few
iterations where it would take eight and many.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mintnet
from mintnet import Chain, FixedPoint, MintLayer, Wavefront, certify, paired_mint, variable
from mintnet.calculus import (
    Certificate,
    Function,
    Identity,
    MaskedConv2d,
    MaskedLinear,
    Softplus,
    Tanh,
    channel_mask,
)
from mintnet.figures.style import LIGHT, Theme, legend, render
from mintnet.solvers import TOLERANCES
from mintnet.solvers.schedule import level_of

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "tests" / "fixtures" / "trained_mnist.pth"
BENCH = ROOT / "results" / "inversion" / "invert-mnist-cpu.json"

TEAL, ORANGE, VIOLET, GREY = LIGHT.colours
UNSEEN, PALE = "#e4e8ec", "#a9d6d3"

Draw = Callable[[Any, Theme], None]
Facts = list[str]


@dataclass(frozen=True)
class Picture:
    """A figure: its file name, how to draw it, its size in inches, and what the pages quote."""

    name: str
    draw: Draw
    size: tuple[float, float]
    facts: Facts


# --- what all figures share -------------------------------------------------------------------


def panels(axes: Any, rows: int, columns: int, **options: Any) -> Any:
    """Several axes in place of the one that `render` gives."""
    figure = axes.figure
    axes.remove()
    return figure.subplots(rows, columns, **options)


def cells(axes: Any, codes: Tensor, colours: list[str], title: str = "") -> None:
    """A matrix of whole numbers as coloured squares; negative ones are left out."""
    height, width = codes.shape
    for code, colour in enumerate(colours):  # neighbours of one colour are one bar: small files
        for r, row in enumerate((codes == code).int().tolist()):
            edges = [q for q in range(width + 1) if [0, *row, 0][q] != [0, *row, 0][q + 1]]
            bars = [(a, b - a) for a, b in zip(edges[::2], edges[1::2], strict=True)]
            if bars:
                axes.broken_barh(bars, (r, 1), facecolors=colour, linewidth=0)
    axes.hlines(range(height + 1), 0, width, colors="#ffffff", linewidth=0.8)
    axes.vlines(range(width + 1), 0, height, colors="#ffffff", linewidth=0.8)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")
    axes.set_title(title, fontsize=10.5, pad=6)


def key(figure: Any, entries: list[tuple[str, str]]) -> None:
    """A legend of coloured squares below the panels."""
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(color=colour, label=label) for colour, label in entries],
        loc="outside lower center",
        ncols=len(entries),
        frameon=False,
        fontsize=9.5,
        handlelength=1,
        handleheight=1,
    )


@torch.no_grad()
def redraw(module: nn.Module, gain: float, seed: int = 0) -> Any:
    """Weights in float64 that are far from the start of training, where every map is near t·x."""
    generator = torch.Generator().manual_seed(seed)
    module.double()
    for name, parameter in module.named_parameters():
        if "raw_t" not in name:
            scale = gain / math.sqrt(parameter[0].numel()) if parameter.dim() > 1 else 0.3
            unit = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(scale * unit)
    return module


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def influence(function: Callable[[Tensor], Tensor], shape: tuple[int, ...], channel: int) -> Tensor:
    """Which inputs the middle pixel of an output channel depends on, by its gradient."""
    x = noise(1, *shape).requires_grad_()
    y = function(x)[0, channel, shape[1] // 2, shape[2] // 2]
    (gradient,) = torch.autograd.grad(y, x)
    return gradient[0] != 0


# --- The ideas: masks, blind spots ------------------------------------------------------------


def masks() -> Picture:
    """Fig. 1: masks of 3 channels, and the receptive fields that follow from them."""
    channels = 3
    conv = redraw(MaskedConv2d(channels), 1.0)
    layer = redraw(MintLayer(channels, 4, (9, 9)), 1.0)
    functions: list[tuple[str, int, Callable[[Tensor], Tensor]]] = [
        ("One masked convolution sees", 7, lambda x: conv(variable(x)).data),
        ("A Mint layer sees", 9, lambda x: layer.evaluate(x)[0]),
    ]
    blocks = [("The masks", tiles(channel_mask(channels, 3).int(), own=False))]
    counts = []
    for title, size, function in functions:
        seen = [influence(function, (channels, size, size), i) for i in range(channels)]
        blocks.append((title, tiles(torch.stack(seen).int())))
        counts.append([int(s.sum()) for s in seen])

    def draw(axes: Any, theme: Theme) -> None:
        for place, (title, codes) in zip(panels(axes, 1, 3), blocks, strict=True):
            cells(place, codes, [UNSEEN, TEAL, ORANGE], title)
            total = len(codes)
            width = (total + 1) / channels
            for i in range(channels):
                middle, name, small = (i + 0.5) * width - 0.5, "ABC"[i], {"fontsize": 9}
                place.text(middle, 1.03 * total, f"in {name}", ha="center", va="top", **small)
                place.text(-0.03 * total, middle, f"out {name}", ha="right", va="center", **small)
        key(
            place.figure,
            [(TEAL, "seen"), (UNSEEN, "masked or not seen"), (ORANGE, "the output's own pixel")],
        )

    facts = [
        f"{name} {count} input pixels, by output channel"
        for (name, _, _), count in zip(functions, counts, strict=True)
    ]
    return Picture("masks", draw, (8.2, 3.5), facts)


def tiles(seen: Tensor, own: bool = True) -> Tensor:
    """(out, in, R, R) as one picture: a row for each output, a column for each input channel."""
    seen = seen.clone()
    middle = seen.shape[-1] // 2
    if own:
        for i in range(len(seen)):
            seen[i, i, middle, middle] = 2
    padded = nn.functional.pad(seen, (0, 1, 0, 1), value=-1)
    return torch.cat([torch.cat(list(row), dim=1) for row in padded])[:-1, :-1]


def blind_spot(size: int = 15) -> Picture:
    """What one pixel of the output sees of the input, for lower layers and for pairs."""
    shape = (size, size)
    stacks = {
        "1 lower layer": Chain(MintLayer(1, 4, shape)),
        "4 lower layers": Chain(*(MintLayer(1, 4, shape) for _ in range(4))),
        "1 pair": paired_mint(1, 4, shape),
        "2 pairs": Chain(paired_mint(1, 4, shape), paired_mint(1, 4, shape)),
    }
    seen = {
        name: influence(lambda x, stack=stack: stack.transform(x)[0], (1, *shape), 0)[0]
        for name, stack in ((name, redraw(stack, 1.0)) for name, stack in stacks.items())
    }
    middle = size // 2
    rank = torch.arange(size * size).reshape(shape)
    earlier = rank <= rank[middle, middle]
    blind = earlier & ~seen["4 lower layers"]
    window = (slice(middle - 3, middle + 4),) * 2

    def draw(axes: Any, theme: Theme) -> None:
        for place, (name, s) in zip(panels(axes, 1, 4), seen.items(), strict=True):
            codes = s.int()
            if "lower" in name:
                codes = torch.where(blind & ~s, 2, codes)
                codes = torch.where(~earlier, 3, codes)
            codes[middle, middle] = 4
            cells(place, codes, [UNSEEN, TEAL, ORANGE, "#f4f6f8", theme.ink], name)
        entries = [
            (TEAL, "seen"),
            (UNSEEN, "not reached yet"),
            (ORANGE, "blind spot"),
            ("#f4f6f8", "after the pixel"),
            (theme.ink, "the pixel"),
        ]
        key(place.figure, entries)

    facts = [
        f"{name}: sees {int(s.sum())} of {size * size} pixels, "
        f"{int(s[window].sum())} of the 49 around it"
        for name, s in seen.items()
    ]
    facts.append(
        f"blind spot of lower layers: {int(blind.sum())} of {int(earlier.sum())} earlier pixels"
    )
    return Picture("blind-spot", draw, (8.2, 2.75), facts)


# --- The ideas: the nested sets ---------------------------------------------------------------


class Coupling(Function):
    """The additive coupling of NICE on four numbers: y = x + m(x₁, x₂) in the last two."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MaskedLinear(4, copies_out=8)
        self.outer = MaskedLinear(4, copies_in=8)
        self.register_buffer("first", torch.tensor([1.0, 1.0, 0.0, 0.0]))

    def forward(self, x: Any) -> Any:
        return x + (1 - self.first) * self.outer(Tanh()(self.inner(self.first * x)))


@dataclass(frozen=True)
class Member:
    """A function of Fig. 2 with what autograd and the proof say of it."""

    name: str
    shape: tuple[int, ...]
    apply: Callable[[Tensor], Tensor]
    proof: Certificate | None
    invertible: bool

    def jacobians(self) -> Iterator[Tensor]:
        """At 0 and at some points around it."""
        size = math.prod(self.shape)
        for x in (torch.zeros(size, dtype=torch.float64), *noise(8, size, seed=3)):
            yield torch.autograd.functional.jacobian(
                lambda v: self.apply(v.reshape(1, *self.shape)).flatten(), x
            )

    def place(self) -> str:
        """The innermost set that holds it, from its Jacobians."""
        found = list(self.jacobians())
        diagonals = torch.stack([j.diagonal() for j in found])
        if any(bool(j.triu(1).any()) for j in found):
            return "I"
        if not self.invertible:
            return "F"
        if bool((diagonals == 0).any()):
            return "M"
        if bool((diagonals < 0).any()):
            return "det"
        return "one" if bool((diagonals == 1).all()) else "positive"

    def row(self) -> str:
        found = list(self.jacobians())
        diagonals = torch.stack([j.diagonal() for j in found])
        triangular = not any(bool(j.triu(1).any()) for j in found)
        span = f"{diagonals.min():.2f} to {diagonals.max():.2f}" if triangular else "not triangular"
        verdict = "not in the calculus" if self.proof is None else self.proof.message.split(":")[0]
        verdict = verdict.split(" (")[0].replace("for 4 of 4 coordinates", "").strip()
        return f"| {self.name} | {SETS[self.place()]} | {span} | {verdict} |".replace("-", "−")


SETS = {
    "I": "invertible, outside F",
    "F": "F, not invertible",
    "M": "M, but det J = 0 somewhere",
    "det": "det J ≠ 0",
    "positive": "diag J > 0",
    "one": "diag J = 1",
}


def members() -> list[Member]:
    def calculus(
        name: str, function: Any, shape: tuple[int, ...], invertible: bool = True
    ) -> Member:
        return Member(
            name, shape, lambda x: function(variable(x)).data, certify(function, shape), invertible
        )

    x = Identity()
    mint = redraw(MintLayer(1, 4, (4, 4)), 2.0)
    pair = redraw(paired_mint(1, 4, (4, 4)), 2.0)
    turn = math.pi / 6
    rotation = torch.tensor(
        [[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]
    ).double()
    return [
        calculus("x²", x * x, (4,), invertible=False),
        calculus("x³", x * x * x, (4,)),
        calculus("− Mint layer", lambda v: -mint.function(v), (1, 4, 4)),
        calculus("Mint layer", mint.function, (1, 4, 4)),
        calculus("softplus", Softplus(), (4,)),
        calculus("coupling", redraw(Coupling(), 1.0), (4,)),
        Member("rotation", (2,), lambda v: v @ rotation.T, None, True),
        Member("Mint pair", (1, 4, 4), lambda v: pair.transform(v)[0], None, True),
    ]


def sets() -> Picture:
    """Fig. 2, each member placed where its Jacobians put it."""
    found = members()
    boxes = {  # left, bottom, right, top, label, colour
        "F": (0.2, 0.3, 11.2, 5.9, "F: triangular Jacobian", GREY),
        "I": (1.9, 0.9, 14.0, 5.3, "", VIOLET),
        "det": (3.5, 1.25, 10.9, 4.5, "det J ≠ 0", ORANGE),
        "positive": (6.0, 1.6, 10.6, 3.85, "diag J > 0", TEAL),
        "one": (8.3, 1.9, 10.35, 3.2, "diag J = 1", TEAL),
    }
    slots = {
        "F": [(0.7, 2.8)],
        "M": [(2.3, 2.8)],
        "det": [(3.8, 2.8)],
        "positive": [(6.35, 2.8), (6.35, 2.15)],
        "one": [(8.6, 2.35)],
        "I": [(11.7, 3.2), (11.7, 2.4)],
    }

    def draw(axes: Any, theme: Theme) -> None:
        from matplotlib.patches import FancyBboxPatch

        axes.set(xlim=(0, 14.2), ylim=(0, 6.2))
        axes.axis("off")
        for left, bottom, right, top, label, colour in boxes.values():
            style = "round,pad=0,rounding_size=0.3"
            corner, width, height = (left, bottom), right - left, top - bottom
            for fill, line in ((colour, "none"), ("none", colour)):
                box = FancyBboxPatch(
                    corner,
                    width,
                    height,
                    boxstyle=style,
                    facecolor=fill,
                    edgecolor=line,
                    linewidth=1.6,
                )
                box.set_alpha(0.09 if fill != "none" else 1)
                axes.add_patch(box)
            axes.text(
                left + 0.25, top - 0.2, label, va="top", color=theme.ink, fontsize=10, weight="bold"
            )
        axes.text(13.75, 5.1, "I: invertible", ha="right", va="top", fontsize=10, weight="bold")
        axes.text(2.15, 5.1, "M: both", va="top", fontsize=10, weight="bold")
        taken = dict.fromkeys(slots, 0)
        for member in found:
            place = member.place()
            px, py = slots[place][taken[place]]
            taken[place] += 1
            axes.plot(px, py, "o", color=theme.ink, markersize=4.5)
            axes.text(px + 0.22, py, member.name, va="center", fontsize=10)

    return Picture("sets", draw, (8.2, 3.6), [member.row() for member in found])


# --- The ideas: Theorem 2 ---------------------------------------------------------------------

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
        legend(left, theme, loc="upper left", fontsize=9)
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
        legend(right, theme, fontsize=9, ncols=2, loc="upper right")

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
        if not 1e-13 < errors[-1] < 1e-1:
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


# --- Solvers: a trained network ---------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A trained layer, counted from 1 in the order of the forward pass, with what to invert."""

    number: int
    layer: MintLayer
    z: Tensor
    x: Tensor


@torch.no_grad()
def targets(samples: int) -> dict[int, Target]:
    """Every layer with the z that belongs to samples from noise, by the wavefront."""
    flow = mintnet.import_original(CHECKPOINT)
    z = flow.sample_latents(samples, seed=0)
    found, number = {}, len(flow.net.layers())
    for part in reversed(flow.net.chain.leaves()):
        x = part.solve(z, Wavefront()).require("")
        if isinstance(part, MintLayer):
            found[number] = Target(number, part, z, x)
            number -= 1
        z = x
    return dict(sorted(found.items()))


def steps(layers: dict[int, Target], most: int) -> Picture:
    """Steps of α = 1 in every layer, and where it never arrives."""
    solved = {
        n: t.layer.solve(t.z, FixedPoint(step=1.0, max_steps=most)) for n, t in layers.items()
    }
    lost = {n: int((~s.converged).sum()) for n, s in solved.items()}
    taken = {n: int(s.steps.max()) for n, s in solved.items()}
    samples = len(layers[1].z)
    certified = [taken[n] for n in layers if not lost[n]]
    facts = [
        f"α = 1, {samples} samples: {len(certified)} of {len(layers)} layers certified, in "
        f"{min(certified)} to {max(certified)} steps; "
        f"{sum(c <= 10 for c in certified)} of them in at most 10",
        *(f"layer {n}: {count} of {samples} samples never" for n, count in lost.items() if count),
    ]

    def draw(axes: Any, theme: Theme) -> None:
        for n in layers:
            axes.bar(n, taken[n], width=0.7, color=ORANGE if lost[n] else TEAL)
            if lost[n]:
                label = f"{lost[n]} of {samples} never"
                axes.text(
                    n,
                    1.2,
                    label,
                    ha="center",
                    va="bottom",
                    rotation=90,
                    color="#ffffff",
                    fontsize=9,
                )
        shapes = [layers[n].layer.event_shape for n in layers]
        for shape in dict.fromkeys(shapes):
            first, last = shapes.index(shape) + 1, len(shapes) - shapes[::-1].index(shape)
            if first > 1:
                axes.axvline(first - 0.5, color=theme.quiet, linewidth=0.8, linestyle=":")
            axes.text(
                (first + last) / 2,
                1.6 * most,
                "×".join(map(str, shape)),
                ha="center",
                va="center",
                color=theme.quiet,
                fontsize=9.5,
            )
        axes.set_yscale("log")
        ticks = [t for t in (1, 2, 5, 10, 20, 50, 120) if t <= most]
        axes.set_yticks(ticks, [str(t) for t in ticks])
        axes.yaxis.minorticks_off()
        axes.set(
            xlim=(0.2, 40.8),
            ylim=(1, 2.1 * most),
            xlabel="layer, in the order of the forward pass",
            ylabel=f"steps, worst of {samples} samples",
        )
        axes.grid(axis="x", visible=False)

    return Picture("steps", draw, (8.2, 3.4), facts)


EASY, HARD = 12, 8
ALPHAS = {"1": 1.0, "2/3": 2 / 3, "1/3.5": 1 / 3.5, "3.5": 3.5}


def residuals(layers: dict[int, Target], most: int) -> Picture:
    """The residual after each step, for an easy and a hard layer."""
    traces: dict[int, dict[str, Tensor]] = {EASY: {}, HARD: {}}
    facts = []
    for n, found in traces.items():
        for name, step in ALPHAS.items():
            solver = FixedPoint(step, most, tolerance=0, allow_any_step=True, keep_trace=True)
            solution = layers[n].layer.solve(layers[n].z, solver)
            assert solution.trace is not None
            found[name] = solution.trace.amax(1)
            below = (found[name] <= TOLERANCES[torch.float32]).nonzero().flatten()
            when = (
                f"all below 5e-6 after {int(below[0])} steps"
                if len(below)
                else f"not below 5e-6 in {most} steps, {float(found[name][-1]):.1e} at the end"
            )
            facts.append(f"layer {n}, α = {name}: {when}")

    def draw(axes: Any, theme: Theme) -> None:
        figure = axes.figure
        for place, (n, found), word in zip(
            panels(axes, 1, 2, sharey=True),
            traces.items(),
            ("an easy layer", "a hard layer"),
            strict=True,
        ):
            for (name, trace), colour in zip(
                found.items(), (TEAL, VIOLET, GREY, ORANGE), strict=True
            ):
                place.semilogy(trace.clamp(max=1e30), color=colour, label=f"α = {name}")
            place.axhline(TOLERANCES[torch.float32], color=theme.quiet, linewidth=1, linestyle="--")
            place.set(ylim=(2e-8, 1e3), xlim=(0, most), title=f"Layer {n}: {word}", xlabel="step")
            place.text(
                most,
                6.5e-6,
                "certified below",
                ha="right",
                va="bottom",
                fontsize=9,
                color=theme.quiet,
            )
        figure.axes[0].set_ylabel("residual, worst sample")
        handles, labels = place.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9.5
        )

    return Picture("residuals", draw, (8.2, 3.7), facts)


def cycle(layers: dict[int, Target], most: int) -> Picture:
    """Why α = 1 fails in the hard layer: one coordinate goes to and fro between two points."""
    layer, z = layers[HARD].layer.double(), layers[HARD].z[:1].double()
    root = layer.solve(z, Wavefront()).value
    with torch.no_grad():
        x, seen = layer.start(z), []
        for _ in range(max(most, 100)):
            y, slope = layer.evaluate(x)
            seen.append((x, y - z, slope))
            x = x - (y - z) / slope
        wrong = (seen[-1][1].abs() > 1e-6 * z.abs().max()).flatten().nonzero().flatten()
        place = int(wrong.max() if layer.ordering.upper else wrong.min())  # the first in the order
        points = [tuple(float(part.flatten()[place]) for part in s) for s in seen[-2:]]
        grid = torch.linspace(points[0][0], points[1][0], 161, dtype=torch.float64)
        middle, half = (grid[0] + grid[-1]) / 2, (grid[-1] - grid[0]).abs() / 2
        grid = middle + 1.5 * half * torch.linspace(-1, 1, 161, dtype=torch.float64)
        at = root.expand(161, *root.shape[1:]).clone()
        at.flatten(1)[:, place] = grid
        curve, slopes = (part.flatten(1)[:, place] for part in layer.evaluate(at))
        curve = curve - z.flatten()[place]
    layers[HARD].layer.float()
    low, high = sorted(point[0] for point in points)
    row, column = divmod(place, layer.event_shape[2])
    crossing = float(root.flatten()[place])
    facts = [
        f"layer {HARD}, row {row + 1}, column {column + 1}: the iteration alternates "
        f"between {low:.2f} and {high:.2f}; the root is {crossing:.2f}",
        f"slope at the two points {', '.join(f'{p[2]:.2f}' for p in sorted(points))}, "
        f"largest between them {float(slopes.max()):.2f}",
    ]

    def draw(axes: Any, theme: Theme) -> None:
        axes.axhline(0, color=theme.quiet, linewidth=1)
        axes.plot(grid, curve, color=TEAL, label="f − z of this entry, the earlier ones solved")
        for start, excess, slope in points:
            end = start - excess / slope
            axes.plot(
                [start, end],
                [excess, 0],
                "--",
                color=ORANGE,
                linewidth=1.5,
                label="a full step follows the tangent" if start == low else None,
            )
            axes.plot(
                [end, end],
                [0, next(p[1] for p in points if p[0] != start)],
                ":",
                color=ORANGE,
                linewidth=1.5,
            )
            axes.plot(start, excess, "o", color=ORANGE)
        axes.plot(crossing, 0, "o", color=theme.ink)
        axes.annotate("root", (crossing, 0), (8, -14), textcoords="offset points")
        axes.set(xlabel="x of this entry", ylabel="f − z", xlim=(float(grid[0]), float(grid[-1])))
        legend(axes, theme, loc="upper left", fontsize=9.5)

    return Picture("cycle", draw, (6.4, 3.4), facts)


def levels() -> Picture:
    """The level schedule: the numbers, and one moment of the walk."""
    one, three, now = level_of((1, 8, 8), 1)[0], level_of((3, 8, 8), 1), 14
    moment = torch.where(three < now, 0, torch.where(three == now, 1, 2))
    shapes = ((1, 28, 28), (4, 14, 14), (16, 7, 7))
    facts = [
        f"{'×'.join(map(str, s))}: {1 + int(level_of(s, 1).max())} levels, {math.prod(s)} entries"
        for s in shapes
    ]
    facts.append(f"picture: level {now}, {int((three == now).sum())} entries at once")

    def draw(axes: Any, theme: Theme) -> None:
        places = panels(axes, 1, 4)
        shade = theme_ramp(int(one.max()) + 1)
        cells(places[0], one, shade, "Levels, one channel")
        for r in range(8):
            for q in range(8):
                number = int(one[r, q])
                colour = "#ffffff" if number > 11 else theme.ink
                places[0].text(
                    q + 0.5,
                    r + 0.53,
                    str(number),
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    color=colour,
                )
        for c in range(3):
            cells(
                places[1 + c], moment[c], [PALE, ORANGE, UNSEEN], f"Channel {'ABC'[c]}, level {now}"
            )
        key(
            places[0].figure,
            [(PALE, "solved"), (ORANGE, "solved now, all at once"), (UNSEEN, "to come")],
        )

    return Picture("levels", draw, (8.2, 2.75), facts)


def theme_ramp(count: int) -> list[str]:
    """Colours from pale to the first of the theme."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    ramp = LinearSegmentedColormap.from_list("ramp", ["#eef6f6", TEAL])
    return [to_hex(ramp(i / max(count - 1, 1))) for i in range(count)]


def bench_rows() -> Facts:
    """The table of `mintnet bench invert`, as the page quotes it."""
    if not BENCH.is_file():
        return []
    figures = json.loads(BENCH.read_text())
    rows = []
    for name, row in figures["ways"].items():
        if not row["extrapolated"]:
            rows.append(
                f"| {name} | {row['seconds']:.1f} s | {row['evaluations']:.0f} "
                f"| {row['not_certified']} | {row['worst_residual']:.0e} "
                f"| {row['end_to_end_residual']:.0e} |"
            )
    return [
        f"step of the 120: {figures['tuned_step']:.3f}, {figures['machine']['threads']} threads",
        *rows,
    ]


# --- all of it --------------------------------------------------------------------------------


def ideas() -> list[Picture]:
    return [masks(), blind_spot(), sets(), theorem2()]


def solvers(fast: bool) -> list[Picture]:
    samples, most = (1, 12) if fast else (8, 120)
    layers = targets(samples)
    return [steps(layers, most), residuals(layers, most), cycle(layers, most), levels()]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    parser.add_argument("--kind", default="svg", choices=("svg", "png"))
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for picture in (*ideas(), *solvers(options.fast)):
        path = options.out / f"{picture.name}.{options.kind}"
        path.write_bytes(render(picture.draw, LIGHT, picture.size, options.kind))
        print(f"\n{path.name}")
        print("\n".join(f"  {fact}" for fact in picture.facts))
    print("\nmintnet bench invert")
    print("\n".join(f"  {row}" for row in bench_rows()))


if __name__ == "__main__":
    main()
