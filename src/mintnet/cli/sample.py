"""`mintnet sample`: new images."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mintnet.cli.command import Count, File, ModelCommand
from mintnet.cli.output import (
    PICTURES,
    Tasks,
    check_output,
    console,
    free_place,
    print_check,
    strong,
    write_picture,
    written_words,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True)
class Sample(ModelCommand):
    """Draw new images from a model, each verified: as one picture, single files or an array."""

    count: Count = 64
    """How many images."""
    out: File = None
    """A picture of all (.png, .jpg, …), an array (.npy), or a folder for single PNG files (a name
    without an ending, or ending in /); samples.png if not given, numbered if that is taken."""
    temperature: float = 1.0
    """Standard deviation of z; below 1, images are more alike and more typical."""
    seed: int = 0
    """Of the draws."""
    batch_size: int = 64
    """How many to invert at a time."""

    def run(self) -> dict[str, Any]:
        from mintnet.analysis import residual_check

        if self.count < 1 or self.batch_size < 1:
            raise ValueError(
                f"-n (--count) and --batch-size are at least 1; got {self.count} and "
                f"{self.batch_size}"
            )
        place = free_place(self.out, "samples.png")
        self._check(place)
        out, flow = console(), self.open().flow
        z = flow.sample_latents(self.count, self.temperature, self.seed)
        started = time.perf_counter()
        with Tasks(out) as task:
            words = f"drawing {self.count} image{'s' * (self.count > 1)}"
            solution = flow.solve(
                z, self.chosen_solver(), batch_size=self.batch_size, progress=task(words)
            )
        seconds = time.perf_counter() - started
        y = solution.require("Nothing was written. Use --solver auto.")
        words = _write(flow.to_images(y).cpu(), flow.levels, place)
        facts = residual_check(flow.net, solution)
        out.print(f"{self.count} image{'s' * (self.count > 1)} in {seconds:.1f} s")
        print_check(out, facts)
        out.print(words)
        return {
            "picture": place,
            "temperature": self.temperature,
            "seed": self.seed,
            "seconds": seconds,
            **facts,
        }

    def _check(self, place: Path) -> None:
        if _is_folder(place):
            if place.is_dir() and any(place.iterdir()):
                raise ValueError(f"--out {place} is a folder with files in it; name a new folder")
            check_output(place / "0000.png")
        else:
            check_output(place, (*PICTURES, ".npy"))


def _is_folder(place: Path) -> bool:
    kind = place.suffix.lower()
    return not kind or (place.is_dir() and kind not in (*PICTURES, ".npy"))


def _write(images: Tensor, levels: int, place: Path) -> str:
    """Write images in the form that the place asks for; gives what to print."""
    import io

    import numpy as np

    from mintnet.figures import image_grid, save_picture
    from mintnet.files import write_bytes

    if _is_folder(place):
        for number, image in enumerate(images):
            single = image_grid(image[None], levels, 1, width=1).convert("RGB")
            save_picture(single, place / f"{number:04d}.png")
        return f"{len(images)} files in {strong(place)}"
    if place.suffix.lower() != ".npy":
        return write_picture(image_grid(images, levels), place)[1]
    buffer, words = io.BytesIO(), written_words(place)
    np.save(buffer, images.numpy())
    write_bytes(place.expanduser(), buffer.getvalue())
    return f"{words}: uint8 of shape {' × '.join(map(str, images.shape))}, 0 to {levels - 1}"
