"""`mintnet reconstruct`: images through the network and back (Fig. 4b)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mintnet.cli.command import Count, DataCommand
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
class Reconstruct(DataCommand):
    """Encode test images and decode them again; the picture shows each above what came back."""

    count: Count = 128
    """How many images, from the first on."""

    shown: int = 48
    """How many of them are in the picture."""

    columns: int = 16
    """Images in a row of the picture."""

    out: Path = Path("reconstructions.png")
    """The picture."""

    def run(self) -> dict[str, Any]:
        from mintnet.figures import reconstruct
        from mintnet.figures.reconstruction import paired_grid

        if min(self.count, self.shown, self.columns) < 1:
            raise ValueError("--count, --shown and --columns are at least 1")
        check_output(self.out, PICTURES)
        out, model = console(), self.open()
        images = self.images(model, few=True).images[: self.count].to(model.device)
        with progress(out, "there and back", len(images)) as tick:
            result = reconstruct(model.flow, images, self.chosen_solver(), tick=tick)
        result.solution.require("Nothing was written. Use --solver auto.")
        picture = paired_grid(result, model.flow.levels, self.shown, self.columns)
        path, words = write_picture(picture, self.out)
        facts = certificate(result.solution)
        exact, total = result.exact, len(images)
        colour = "green" if exact == total else "red"
        out.print(f"[{colour}]{exact} of {total} images came back byte for byte[/]")
        out.print(
            f"mean ‖x − y‖² / D = {float(result.errors.mean()):.2e}, worst "
            f"{float(result.errors.max()):.2e}, with pixels in [[0, 1]".replace("[[", r"\[")
        )
        print_certificate(out, facts)
        out.print(words if total <= self.shown else f"{words} ({self.shown} of {total} are shown)")
        return {"picture": path, **facts, **result.to_dict()}
