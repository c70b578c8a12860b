"""`mintnet interpolate`: between four images (Appendix C)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from mintnet.cli.command import DataCommand
from mintnet.cli.output import (
    PICTURES,
    certificate,
    check_output,
    console,
    print_certificate,
    progress,
    write_picture,
)


@dataclass(kw_only=True)
class Interpolate(DataCommand):
    """Draw the 8 × 8 images between four: angles 0, π/14, …, 7π/14 in both directions."""

    places: Annotated[tuple[int, int, int, int] | None, tyro.conf.arg(name="images")] = None
    """Which four images, by their places in the data set; drawn with --seed if not given."""

    seed: int = 0
    """Draws the four images."""

    out: Path = Path("interpolation.png")
    """The picture."""

    def run(self) -> dict[str, Any]:
        import torch

        from mintnet.figures import ANGLES, codes_between, image_grid, solve_in_batches

        check_output(self.out, PICTURES)
        out, model = console(), self.open()
        data = self.images(model, few=True)
        if self.places is None:
            generator = torch.Generator().manual_seed(self.seed)
            chosen = torch.randperm(len(data), generator=generator)[:4].tolist()
        else:
            chosen = list(self.places)
        if len(chosen) < 4 or not all(0 <= place < len(data) for place in chosen):
            raise ValueError(
                f"--images takes four places from 0 to {len(data) - 1}; got "
                f"{', '.join(map(str, chosen))}"
            )
        four = data.images[chosen].to(model.device)
        z = codes_between(model.flow, four)
        with progress(out, "between", len(z)) as tick:
            solution = solve_in_batches(model.flow, z, self.chosen_solver(), tick=tick)
        between = model.flow.to_images(solution.require("Nothing was written. Use --solver auto."))
        path, words = write_picture(image_grid(between, model.flow.levels, 8), self.out)
        facts = certificate(solution)
        out.print(f"Between images {', '.join(map(str, chosen))} of {data.name}, in the corners.")
        print_certificate(out, facts)
        out.print(words)
        return {"picture": path, "images": chosen, "angles": list(ANGLES), **facts}
