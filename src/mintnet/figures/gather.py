"""Everything that a report shows of a model, computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mintnet.data import ImageData
from mintnet.figures.budget import affordable_curves
from mintnet.figures.curves import read_metrics
from mintnet.figures.layers import layer_rows, solve_in_batches
from mintnet.figures.panels import (
    certificate_headlines,
    interpolation_panel,
    layers_note,
    progress_pictures,
    reconstructions_panel,
    samples_panel,
)
from mintnet.figures.reconstruction import reconstruct
from mintnet.figures.report import Contents, Headline
from mintnet.flows import RealNVPCoupling
from mintnet.models import Flow
from mintnet.solvers import Solver

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Amounts:
    """How much a report looks at.

    Attributes:
        samples: images to draw.
        images: test images to reconstruct.
        likelihood: test images for the bits per dimension, at most.
        seconds: time for the curves of Algorithm 1, about; fewer images and points are taken
            where all need more. 0: no limit.
    """

    samples: int = 64
    images: int = 32
    likelihood: int = 1024
    seconds: float = 60.0


def gather(
    flow: Flow,
    data: ImageData,
    title: str,
    run: Path | None = None,
    amounts: Amounts | None = None,
    solver: Solver | None = None,
    seed: int = 0,
    tell: Tell = lambda _: None,
) -> Contents:
    """Measure a model on its test images and draw from it.

    Args:
        flow: the model.
        data: the test images.
        title: of the page.
        run: the run folder, whose metrics and grids of samples are shown too.
        amounts: how much to look at.
        solver: for inverses; the default if not given.
        seed: of samples and of dequantization noise.
        tell: hears what is being done.
    """
    amounts = amounts or Amounts()
    generator = torch.Generator().manual_seed(seed)
    contents = Contents(title, metrics=read_metrics(run) if run else [])
    contents.progress = progress_pictures(run) if run else []
    tell("bits per dimension")
    bpd, error, count = bits_per_dim(flow, data.images, amounts.likelihood, seed)
    contents.bits_per_dim = bpd
    tell("samples")
    z = flow.sample_latents(amounts.samples, seed=seed)
    drawn = solve_in_batches(flow, z, solver)
    contents.samples = samples_panel(flow, drawn)
    tell("reconstructions")
    chosen = torch.randperm(len(data), generator=generator)[: amounts.images]
    images = data.images[chosen].to(next(flow.parameters()).device)
    back = reconstruct(flow, images, solver)
    contents.reconstructions = reconstructions_panel(flow, back)
    contents.layers, contents.layers_note = layer_rows(back.solution), layers_note(back)
    tell("interpolation")
    contents.interpolation = interpolation_panel(flow, images[_unlike(data, chosen)], solver)
    tell("Algorithm 1, for growing numbers of iterations")
    contents.curves = affordable_curves(flow, images, amounts.seconds)
    whole = "all" if count == len(data) else "the first"
    contents.headlines = [
        Headline(f"{bpd:.3f}", "bits per dimension", f"± {error:.3f}, {whole} {count} test images"),
        *certificate_headlines(back, drawn),
        Headline(f"{flow.net.parameter_count():,}", "parameters", f"{_shape(flow)} pixels"),
    ]
    contents.facts = model_facts(flow)
    return contents


@torch.no_grad()
def bits_per_dim(
    flow: Flow, images: Tensor, most: int, seed: int = 0, batch: int = 128
) -> tuple[float, float, int]:
    """Mean, standard error and count over the first images, one draw of noise each.

    Examples:
        >>> images = torch.zeros(6, 1, 8, 8, dtype=torch.uint8)
        >>> bits_per_dim(Flow.preset("digits"), images, most=4)[2]
        4
    """
    images = images[:most]
    device = next(flow.parameters()).device
    found = [
        flow.bits_per_dim(images[index].to(device), seed, index=index.to(device)).double().cpu()
        for index in torch.arange(len(images)).split(batch)
    ]
    values = torch.cat(found)
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), error, len(values)


def model_facts(flow: Flow) -> list[tuple[str, str]]:
    """A model in words."""
    config = flow.net.config
    return [
        ("images", f"{_shape(flow)}, {flow.levels} levels"),
        ("pairs of layers in each stage", ", ".join(map(str, config.pairs))),
        ("filters K in each stage", ", ".join(map(str, config.filters))),
        ("Mint layers", str(len(flow.net.layers()))),
        ("couplings after squeezes", _couplings(flow)),
        ("activation", config.activation),
        ("kernel", f"{config.kernel_size} × {config.kernel_size}"),
        ("form of t", config.t_form),
        ("λ of the logit", f"{flow.logit.lam:g}"),
        ("centre of the logit", f"{flow.logit.centre:g}"),
        ("parameters", f"{flow.net.parameter_count():,}"),
    ]


def _couplings(flow: Flow) -> str:
    found = [part for part in flow.net.chain.leaves() if isinstance(part, RealNVPCoupling)]
    if not found:
        return "none"
    size = sum(parameter.numel() for part in found for parameter in part.parameters())
    return f"{len(found)} of width {flow.net.config.couplings}, {size:,} parameters"


def _unlike(data: ImageData, chosen: Tensor) -> list[int]:
    """Places among the chosen images of the first four with different labels, if there are any."""
    if data.labels is None:
        return list(range(min(4, len(chosen))))
    labels = data.labels[chosen].tolist()
    first = [place for place, label in enumerate(labels) if label not in labels[:place]]
    return [*first, *(place for place in range(len(labels)) if place not in first)][:4]


def _shape(flow: Flow) -> str:
    return " × ".join(map(str, flow.shape))
