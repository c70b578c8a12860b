"""Fig. 1: what masked convolutions see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from figures_src.parts import ORANGE, TEAL, UNSEEN, Picture, cells, influence, key, panels, redraw
from mintnet import MintLayer, variable
from mintnet.calculus import MaskedConv2d, channel_mask
from mintnet.figures.style import Theme


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
