"""What lower layers never see, and pairs do."""

from __future__ import annotations

from typing import Any

import torch

from figures_src.parts import ORANGE, TEAL, UNSEEN, Picture, cells, influence, key, panels, redraw
from mintnet import Chain, MintLayer, paired_mint
from mintnet.figures.style import Theme


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
