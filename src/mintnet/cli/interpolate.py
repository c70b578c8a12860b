"""`mintnet interpolate`: between four images (Appendix C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from mintnet.cli.command import DataCommand, File
from mintnet.cli.output import (
    PICTURES,
    Tasks,
    check_output,
    console,
    free_place,
    print_check,
    write_picture,
)


@dataclass(kw_only=True)
class Interpolate(DataCommand):
    """Draw the 8 × 8 images between four: angles 0, π/14, …, 7π/14 in both directions."""

    places: Annotated[tuple[int, int, int, int] | None, tyro.conf.arg(name="images")] = None
    """Which four images, by their places in the data set; drawn with --seed if not given."""
    seed: int = 0
    """Draws the four images."""
    out: File = None
    """The picture; interpolation.png if not given, numbered if that is taken."""

    def run(self) -> dict[str, Any]:
        import torch

        from mintnet.analysis import ANGLES, codes_between, residual_check
        from mintnet.figures import image_grid

        place = free_place(self.out, "interpolation.png")
        check_output(place, PICTURES)
        out, model = console(), self.open()
        flow, solver = model.flow, self.chosen_solver()
        data = self.images(model)
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
        with Tasks(out) as task, torch.no_grad():
            z = codes_between(flow.encode(data.images[chosen].to(flow.device)))
            solution = flow.solve(z, solver, progress=task("64 images between four"))
        between = flow.to_images(solution.require("Nothing was written. Use --solver auto."))
        path, words = write_picture(image_grid(between, flow.levels, 8), place)
        facts = residual_check(flow.net, solution)
        out.print(f"Between images {', '.join(map(str, chosen))} of {data.name}, in the corners.")
        print_check(out, facts)
        out.print(words)
        return {"picture": path, "images": chosen, "angles": list(ANGLES), **facts}
