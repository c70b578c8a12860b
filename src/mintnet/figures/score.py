"""The page of `mintnet score`: pictures sorted by oddness, each with its map as an overlay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mintnet.figures.grid import image_grid
from mintnet.figures.report import embedded, template

WARM, STRONGEST = (230, 60, 20), 6.0  # the colour of what is unusual, full at so many deviations
Shown = tuple[dict[str, Any], Tensor, Tensor | None]
"""Facts about a picture, the picture (C, H, W) uint8, and its standardised map (H, W)."""


def score_page(title: str, words: str, shown: Iterable[Shown], levels: int) -> str:
    """The page as text, with all its pictures in it."""
    cards = []
    for facts, image, unusual in shown:
        maps = [] if unusual is None else [overlay(image, unusual, levels)]
        pair = torch.stack([image.expand(3, -1, -1), *maps])
        cards.append((facts, embedded(image_grid(pair, levels, len(pair), width=320))))
    return str(template("score.html.j2").render(title=title, words=words, cards=cards))


def overlay(image: Tensor, unusual: Tensor, levels: int) -> Tensor:
    """A dimmed grey picture with warm colour where nats are above the usual, (3, H, W) uint8.

    Examples:
        >>> black = torch.zeros(1, 1, 2, dtype=torch.uint8)
        >>> overlay(black, torch.tensor([[0.0, 60.0]]), 256)[0]
        tensor([[  0, 230]], dtype=torch.uint8)
    """
    grey = 0.6 * image.double().mean(0).expand(3, -1, -1)
    colour = torch.tensor(WARM).double()[:, None, None] * ((levels - 1) / 255)
    share = ((unusual - 1.0) / (STRONGEST - 1.0)).clamp(0, 1)
    return torch.lerp(grey, colour.expand_as(grey), share.double()).round().to(torch.uint8)
