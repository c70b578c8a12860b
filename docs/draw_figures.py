"""Draw the figures of the pages "The ideas" and "Choose a solver" with the library itself.

    python docs/draw_figures.py [NAME ...] [--out FOLDER] [--kind svg|png] [--fast]

draws all figures, or those of the given names, and prints the numbers that the pages quote.
With --fast it takes one sample and few iterations where it would take eight and many. Each figure
has a file of its own in `figures_src`.
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path

from figures_src.accelerate import accelerate
from figures_src.blind_spot import blind_spot
from figures_src.cycle import cycle
from figures_src.levels import levels
from figures_src.masks import masks
from figures_src.parts import Picture
from figures_src.sets import sets
from figures_src.steps import steps
from figures_src.theorem2 import theorem2
from figures_src.trained import targets

from mintnet.figures.style import LIGHT, render

PLAIN = {
    "masks": masks,
    "blind-spot": blind_spot,
    "sets": sets,
    "theorem-2": theorem2,
    "levels": levels,
    "accelerate": accelerate,
}
TRAINED = {"steps": steps, "cycle": cycle}  # of a trained network, which takes a while to invert
NAMES = (*PLAIN, *TRAINED)


def picture(name: str, fast: bool) -> Picture:
    """The figure of that name."""
    if name in TRAINED:
        samples, most = (1, 12) if fast else (8, 120)
        return TRAINED[name](_targets(samples), most)
    return PLAIN[name]()


_targets = cache(targets)  # inverting a trained network takes a while


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    parser.add_argument("--kind", default="svg", choices=("svg", "png"))
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no figure {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or NAMES:
        drawn = picture(name, options.fast)
        path = options.out / f"{drawn.name}.{options.kind}"
        path.write_bytes(render(drawn.draw, LIGHT, drawn.size, options.kind))
        print(f"\n{path.name}")
        print("\n".join(f"  {fact}" for fact in drawn.facts))


if __name__ == "__main__":
    main()
