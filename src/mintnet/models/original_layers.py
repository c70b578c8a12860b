"""Mint layers in the format that the paper's authors published."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mintnet.bijections import MintLayer
from mintnet.models.storage import ModelFileError

Pair = dict[str, Tensor]


def stages_of(pairs: dict[int, Pair]) -> list[list[Pair]]:
    """Pairs in stages: a number that is left out belongs to a squeeze.

    Examples:
        >>> [len(stage) for stage in stages_of({0: {}, 1: {}, 3: {}})]
        [2, 1]
    """
    stages: list[list[Pair]] = []
    previous = None
    for number in sorted(pairs):
        if previous is None or number != previous + 1:
            stages.append([])
        stages[-1].append(pairs[number])
        previous = number
    return stages


@torch.no_grad()
def fill_layer(layer: MintLayer, pair: Pair, side: str, path: Path) -> None:
    """Copy one layer; its hidden channels come in the order k · C + c and are kept as c · K + k."""
    c, k = layer.channels, layer.filters
    copies = {"weight1": (k, 1), "weight2": (k, k), "weight3": (1, k), "bias1": (k,), "bias2": (k,)}
    for name in ("weight1", "weight2", "weight3", "bias1", "bias2", "bias3"):
        value = pair[f"{side}.{name}"]
        for axis, count in enumerate(copies.get(name, ())):
            if value.shape[axis] == count * c:
                grouped = value.unflatten(axis, (count, c)).transpose(axis, axis + 1)
                value = grouped.flatten(axis, axis + 1)
        target = getattr(layer, name)
        if value.shape != target.shape:
            raise ModelFileError(
                f"{path}: {name} of {layer.name} has shape {tuple(value.shape)}, expected "
                f"{tuple(target.shape)}"
            )
        target.copy_(value)
    if pair[f"{side}.t"].shape[1:] != layer.raw_t.shape:
        raise ModelFileError(
            f"{path}: t of {layer.name} has shape {tuple(pair[f'{side}.t'].shape)}, expected "
            f"(1, {', '.join(map(str, layer.raw_t.shape))})"
        )
    layer.raw_t.copy_(pair[f"{side}.t"][0])
