"""A fresh model and the images for a preset."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mintnet.data import ImageData
from mintnet.models.classifier import CLASSIFIERS, PIXELS, Classifier
from mintnet.models.flow import LAMBDAS, Flow
from mintnet.models.labelled import ImageClassifier
from mintnet.models.mintnet import PRESETS, MintNetConfig
from mintnet.models.resnet import ResNet, ResNetConfig
from mintnet.training.classification import check_labels, check_variety
from mintnet.training.order import stream
from mintnet.training.recipe import data_and_kind, recipe_for


def build_flow(
    preset: str,
    data: ImageData,
    seed: int,
    pairs: Sequence[int] | None = None,
    filters: Sequence[int] | None = None,
    logit_lambda: float | None = None,
    kernel_size: int | None = None,
    centre: float | None = None,
    couplings: int | None = None,
) -> Flow:
    """The model of a preset for these images, with weights drawn from the seed.

    Args:
        preset: of `RECIPES`; ``folder`` fits its network to the images.
        data: the training images.
        seed: of the first weights.
        pairs: pairs of Mint layers in each stage, instead of the preset's.
        filters: K of each stage, instead of the preset's.
        logit_lambda: λ, instead of the preset's.
        kernel_size: of masked convolutions, instead of the preset's.
        centre: of the logit; 0 if not given.
        couplings: their width, instead of the preset's.

    Examples:
        >>> from mintnet.data import load
        >>> build_flow("digits", load("digits", "test"), seed=0).shape
        (1, 8, 8)
    """
    recipe_for(preset)
    config = PRESETS.get(preset) or _folder_config(data.shape)
    if config.shape != data.shape:
        raise ValueError(f"{preset} takes images of shape {config.shape}; got {data.shape}")
    config = replace(
        config,
        pairs=tuple(pairs or config.pairs),
        filters=tuple(filters or config.filters),
        kernel_size=config.kernel_size if kernel_size is None else kernel_size,
        couplings=config.couplings if couplings is None else couplings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(seed, "weights"))
        lam = LAMBDAS.get(preset, 0.05) if logit_lambda is None else logit_lambda
        return Flow(config, lam, data.levels, centre or 0.0)


def build_classifier(
    preset: str,
    data: ImageData,
    seed: int,
    pairs: Sequence[int] | None = None,
    filters: Sequence[int] | None = None,
    kernel_size: int | None = None,
) -> ImageClassifier:
    """The classifier or ResNet of a preset for these images, with weights drawn from the seed.

    Args:
        preset: of `RECIPES`, one that ends in ``-classifier`` or ``-resnet``.
        data: the training images, with labels.
        seed: of the first weights.
        pairs: pairs of Mint layers in each stage, instead of the preset's.
        filters: K of each stage of a classifier, instead of the preset's.
        kernel_size: of masked convolutions, instead of the preset's.

    Examples:
        >>> from mintnet.data import load
        >>> build_classifier("digits-classifier", load("digits", "test"), seed=0).classes
        10
    """
    recipe_for(preset)
    name, kind = data_and_kind(preset)
    pixels = PIXELS[name]
    if (pixels.shape, pixels.levels) != (data.shape, data.levels):
        raise ValueError(
            f"{preset} takes images of shape {pixels.shape} with {pixels.levels} levels; got "
            f"{data.shape} with {data.levels}"
        )
    check_labels(data, 10, "training")
    check_variety(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(seed, "weights"))
        if kind == "resnet":
            if (pairs, filters, kernel_size) != (None, None, None):
                raise ValueError(
                    "--pairs, --filters and --kernel-size are for Mint layers; a ResNet has none"
                )
            return ResNet(ResNetConfig(), pixels)
        config = CLASSIFIERS[name]
        config = replace(
            config,
            pairs=tuple(pairs or config.pairs),
            filters=tuple(filters or config.filters),
            kernel_size=config.kernel_size if kernel_size is None else kernel_size,
        )
        return Classifier(config, pixels)


def describe(
    name: str, data: ImageData, folder: str | None, size: int | None, grey: bool
) -> dict[str, Any]:
    """Which images a run is about, as plain data, with a checksum over about 1,000 of them.

    ``name`` is what `load` takes; where a data set has versions, ``data.name`` tells which.

    Examples:
        >>> from mintnet.data import load
        >>> describe("digits", load("digits", "test"), None, None, False)["images"]
        360
    """
    some = data.images[:: max(1, len(data) // 1000)].contiguous().numpy().data
    return {
        "name": name,
        "version": data.name,
        "folder": folder,
        "size": size,
        "grey": grey,
        "images": len(data),
        "shape": list(data.shape),
        "levels": data.levels,
        "checksum": zlib.crc32(some),
    }


def size_warning(size: int) -> str | None:
    """What a ``--size`` that does not halve evenly costs, in a line; None where it costs nothing.

    Examples:
        >>> size_warning(33)
        'images of 33 × 33 do not halve evenly: the network has 1 stage; --size 32 would give it 3'
        >>> size_warning(32)
    """
    stages, near = _stages(size, size), round(size / 4) * 4
    more = _stages(near, near)
    if size < 8 or more <= stages:  # smaller ones are not halved anyway
        return None
    words = "1 stage" if stages == 1 else f"{stages} stages"
    return (
        f"images of {size} × {size} do not halve evenly: the network has {words}; "
        f"--size {near} would give it {more}"
    )


def _stages(height: int, width: int) -> int:
    """One more for each time that both sides halve, three at most."""
    stages = 1
    while stages < 3 and height % 2 == 0 and width % 2 == 0 and min(height, width) >= 8:
        height, width, stages = height // 2, width // 2, stages + 1
    return stages


def _folder_config(shape: tuple[int, int, int]) -> MintNetConfig:
    """About 100 hidden channels in each of up to three stages, as often as the size halves."""
    c, h, w = shape
    stages = _stages(h, w)
    filters = tuple(max(1, 96 // (c * 4**stage)) for stage in range(stages))
    return MintNetConfig(shape, pairs=(4,) * stages, filters=filters)
