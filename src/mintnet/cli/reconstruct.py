"""`mintnet reconstruct`: images through the network and back (Fig. 4b)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mintnet.cli.command import Count, DataCommand, File
from mintnet.cli.output import (
    PICTURES,
    Tasks,
    check_output,
    console,
    free_place,
    print_check,
    write_picture,
)

SHOWN = 48


@dataclass(kw_only=True)
class Reconstruct(DataCommand):
    """Encode test images and decode them again; the picture shows each above what came back."""

    count: Count = 128
    """How many images, from the first on."""
    batch_size: int = 64
    """How many to invert at a time."""
    out: File = None
    """The picture; reconstructions.png if not given, numbered if that is taken."""

    def run(self) -> dict[str, Any]:
        from mintnet.analysis import reconstruct, residual_check
        from mintnet.figures import paired_grid

        if min(self.count, self.batch_size) < 1:
            raise ValueError("--count and --batch-size are at least 1")
        place = free_place(self.out, "reconstructions.png")
        check_output(place, PICTURES)
        out, model = console(), self.open()
        flow, solver = model.flow, self.chosen_solver()
        images = self.images(model).images[: self.count].to(flow.device)
        with Tasks(out) as task:
            progress = task(f"{len(images)} images through the network and back")
            result = reconstruct(flow, images, solver, self.batch_size, progress)
        result.solution.require("Nothing was written. Use --solver auto.")
        path, words = write_picture(paired_grid(result, flow.levels, SHOWN), place)
        facts = residual_check(flow.net, result.solution)
        exact, total = result.exact, len(images)
        colour = "green" if exact == total else "red"
        out.print(f"[{colour}]{exact} of {total} images came back byte for byte[/]")
        out.print(
            f"mean ‖x − y‖² / D = {float(result.errors.mean()):.2e}, worst "
            f"{float(result.errors.max()):.2e}, with pixels in [0, 1]",
            markup=False,
        )
        print_check(out, facts)
        out.print(words if total <= SHOWN else f"{words} ({SHOWN} of {total} are shown)")
        return {"picture": path, **facts, **result.to_dict()}
