"""`mintnet bench accelerate`: samples of zuko's and nflows' flows, by themselves and accelerated.

Each flow is trained on dequantized images (digits, or MNIST averaged over squares of pixels), after
the logit and a standardization, and then draws samples from the same noise in both ways: seconds in
one run on one machine, and the largest difference of a coordinate. Beside that, ``--count`` samples
are drawn by the accelerated flow alone and checked by another computation: the flow in float64
has to map each of them to its noise again. Noise for which `InversionError` is raised is left out
and counted; a flow that is trained little may overflow there, and its library returns NaN.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import mintnet
from mintnet.analysis.origin import machine
from mintnet.cli.command import Command, Folder
from mintnet.cli.output import console
from mintnet.data import load

from .timing import check_positive, plain_table, timed

CPU = torch.device("cpu")
LAMBDA = 0.01
COLUMNS = ("D", "passes", "library", "fast", "times", "differ", "wrong", "raised")
WRONG = 1e-3
"""A sample whose noise in float64 is farther away than this share of the largest |z| is wrong."""


@dataclass(frozen=True)
class Case:
    """A flow of a library, and the images that it is trained on: D = side²."""

    title: str
    build: Callable[[int], nn.Module]
    side: int
    width: int
    data: str = "mnist"


def zuko_flow(kind: str, width: int, dimensions: int) -> nn.Module:
    import zuko

    flow: nn.Module = getattr(zuko.flows, kind)(
        dimensions, transforms=5, hidden_features=(width, width)
    )
    return flow


def nflows_flow(width: int, dimensions: int) -> nn.Module:
    from nflows.flows import MaskedAutoregressiveFlow

    flow: nn.Module = MaskedAutoregressiveFlow(dimensions, width, 5, 1)
    return flow


def cases() -> list[Case]:
    """Digits first: they come along. The others need the files of MNIST."""
    maf, nsf = partial(zuko_flow, "MAF"), partial(zuko_flow, "NSF")
    return [
        Case("zuko MAF, digits", partial(maf, 256), 8, 256, "digits"),
        Case("zuko NSF, digits", partial(nsf, 64), 8, 64, "digits"),
        Case("nflows MAF, digits", partial(nflows_flow, 256), 8, 256, "digits"),
        Case("zuko MAF, MNIST 4 × 4", partial(maf, 128), 4, 128),
        Case("zuko MAF, MNIST 14 × 14", partial(maf, 256), 14, 256),
        Case("zuko MAF, MNIST", partial(maf, 512), 28, 512),
        Case("nflows MAF, MNIST", partial(nflows_flow, 512), 28, 512),
    ]


class Pixels:
    """Batches of dequantized images as standardized logits, (batch, D)."""

    def __init__(self, images: Tensor, levels: int, side: int) -> None:
        self.images, self.levels = images, levels
        self.pool = images.shape[-1] // side
        first = self.logits(min(4000, len(images)))
        self.mean, self.scale = first.mean(0), first.std(0)

    def logits(self, count: int) -> Tensor:
        chosen = self.images[torch.randint(len(self.images), (count,))].float()
        x = avg_pool2d((chosen + torch.rand_like(chosen)) / self.levels, self.pool).flatten(1)
        return torch.logit(LAMBDA + (1 - 2 * LAMBDA) * x)

    def __call__(self, count: int) -> Tensor:
        return (self.logits(count) - self.mean) / self.scale


def log_prob(flow: Any, x: Tensor) -> Tensor:
    found: Tensor = flow.log_prob(x) if hasattr(flow, "log_prob") else flow().log_prob(x)
    return found


def transform(flow: Any) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """x ↦ z and z ↦ x of a flow of either library."""
    if hasattr(flow, "_transform"):
        inner = flow._transform
        return (lambda x: inner(x)[0]), (lambda z: inner.inverse(z)[0])
    inner = flow().transform
    return inner, inner.inv


def train(flow: nn.Module, pixels: Pixels, steps: int, batch: int = 128) -> float:
    """Train with Adam and a linear decay; gives the mean of the last losses, nats a coordinate."""
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    losses = []
    for _ in range(steps):
        x = pixels(batch)
        loss = -log_prob(flow, x).mean() / x.shape[1]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimizer.step()
        decay.step()
        losses.append(loss.item())
    flow.eval()
    return sum(losses[-20:]) / len(losses[-20:])


@torch.no_grad()
def measure(flow: nn.Module, dimensions: int, compared: int, count: int) -> dict[str, Any]:
    """Seconds of both ways for the same noise, their difference, and a check of many samples."""
    fast = mintnet.accelerate(flow)
    (_, inverse), (_, quick) = transform(flow), transform(fast)
    z, _, refused_first = verified(quick, torch.randn(compared, dimensions))
    repeats = 3 if dimensions < 200 else 1
    pairs = [(timed(lambda: inverse(z), CPU), timed(lambda: quick(z), CPU)) for _ in range(repeats)]
    slow, accelerated = (min(pair[way][0] for pair in pairs) for way in (0, 1))
    theirs, ours = pairs[0][0][1], pairs[0][1][1]
    exact, worst, wrong, refused = copy.deepcopy(flow).double(), 0.0, 0, refused_first
    back = transform(exact)[0]
    for drawn in torch.randn(count, dimensions).split(1000):
        noise, x, failed = verified(quick, drawn)
        refused += failed
        residual = (back(x.double()) - noise).abs().amax(1) / noise.abs().amax(1)
        worst, wrong = max(worst, float(residual.max())), wrong + int((residual > WRONG).sum())
    return {
        "samples_compared": len(z),
        "library_seconds": round(slow, 4),
        "accelerated_seconds": round(accelerated, 4),
        "faster": round(slow / accelerated, 2),
        "passes_per_layer": round(passes(flow, fast, z), 2),
        "largest_difference": float((theirs - ours).abs().max()),
        "samples_checked": count - refused + refused_first,
        "samples_refused": refused,
        "samples_wrong": wrong,
        "worst_residual_float64": worst,
    }


def verified(sample: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor, int]:
    """Noise whose samples are verified, these samples, and how many are not."""
    try:
        return z, sample(z), 0
    except mintnet.InversionError as error:
        kept = error.solution.converged
        return z[kept], error.solution.value[kept], int((~kept).sum())


def passes(flow: nn.Module, fast: Any, z: Tensor) -> float:
    """Evaluations of a layer's network for one sample, its share of the check included."""
    kinds = ("MaskedMLP", "MADE")
    networks = [m for m in flow.modules() if type(m).__name__ in kinds]
    rows = 0

    def count(network: nn.Module, given: tuple[Tensor, ...], _: Tensor) -> None:
        nonlocal rows
        rows += given[0].shape[:-1].numel()

    handles = [network.register_forward_hook(count) for network in networks]
    transform(fast)[1](z)
    for handle in handles:
        handle.remove()
    return rows / len(z) / len(networks)


@dataclass(kw_only=True)
class Accelerate(Command):
    """Samples of zuko's and nflows' autoregressive flows, by themselves and accelerated."""

    data: Folder = None
    """The folder with the files of MNIST; digits alone if not given."""
    steps: int = 400
    """Of training, for each flow."""
    compared: int = 128
    """Samples that are drawn in both ways; of D = 784 a quarter of them."""
    count: int = 10_000
    """Samples that are drawn by the accelerated flow and checked in float64."""
    seed: int = 0
    """Of weights, batches and noise."""

    def run(self) -> dict[str, Any]:
        check_positive(steps=self.steps, compared=self.compared, count=self.count)
        out, rows = console(), {}
        table = plain_table("Samples of autoregressive flows", "flow", *COLUMNS)
        for case in cases():
            if case.data == "mnist" and self.data is None:
                continue
            images = load(case.data, "train", self.data if case.data == "mnist" else None)
            torch.manual_seed(self.seed)
            dimensions = case.side**2
            flow = case.build(dimensions)
            out.print(f"{case.title}: training", style="dim")
            loss = train(flow, Pixels(images.images, images.levels, case.side), self.steps)
            compared = max(1, self.compared // 4) if dimensions > 200 else self.compared
            row = measure(flow, dimensions, compared, self.count)
            rows[case.title] = {"dimensions": dimensions, "width": case.width, "loss": loss, **row}
            out.print(f"{case.title}: {row['faster']} times faster", style="dim")
            table.add_row(
                case.title,
                str(dimensions),
                f"{row['passes_per_layer']:.1f}",
                f"{row['library_seconds']:.2f} s",
                f"{row['accelerated_seconds']:.3f} s",
                f"{row['faster']:.1f}",
                f"{row['largest_difference']:.0e}",
                str(row["samples_wrong"]),
                str(row["samples_refused"]),
            )
        out.print(table)
        return {"layers": 5, "steps": self.steps, "machine": machine(CPU), "rows": rows}
