"""`mintnet sample`, `reconstruct` and `interpolate`: pictures that a density model makes."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from rich.console import Console
from torch import Tensor

from mintnet.analysis import codes_between, reconstruct
from mintnet.calculus.masks import check_positive
from mintnet.cli.command import Count, DataCommand, File, InverseCommand, Name
from mintnet.cli.output import PICTURES, Tasks, console, output_place, print_check, strong, write
from mintnet.figures import image_grid, paired_grid, save_picture

REMEDY = "Nothing was written. Use --solver auto."
SHOWN = 48


@dataclass(kw_only=True)
class Sample(InverseCommand):
    """Draw new images from a model, each verified: as one picture, single files or an array."""

    count: Count = 64  # How many images.
    out: File = None
    """A picture of all (.png, .jpg, …), an array (.npy), or a folder for single PNG files (a name
    without an ending, or ending in /); samples.png if not given, numbered if that is taken."""
    temperature: float = 1.0
    """Standard deviation of z; below 1, images are more alike and more typical."""
    seed: int = 0  # Of the draws.
    label: Name = None
    """Of a class-conditional model: name or number of the class of all images; if not given, all
    by turns."""
    batch_size: int = 64  # How many to invert at a time.

    then = "mintnet interpolate {model}"

    def run(self) -> dict[str, Any]:
        check_positive(count=self.count, batch_size=self.batch_size)
        place, out = self._place(), console()
        opened, solver = self.open(), self.chosen_solver()
        flow, label = opened.flow, self._class(opened.class_names())
        z = flow.sample_latents(self.count, self.temperature, self.seed)
        images = f"{self.count} image{'s' * (self.count > 1)}"
        started = time.perf_counter()
        with Tasks(out) as task:
            bar, size = task(f"drawing {images}"), self.batch_size
            solution = flow.solve(z, solver, labels=label, batch_size=size, progress=bar)
        seconds = time.perf_counter() - started
        drawn = flow.to_images(solution.require(REMEDY)).cpu()
        out.print(f"{images} in {seconds:.1f} s")
        facts = print_check(out, flow.net, solution)
        _write_samples(out, drawn, flow.levels, place)
        return {"picture": place, "seed": self.seed, "seconds": seconds, **facts}

    def _place(self) -> Path:
        if self.out is None or not _is_folder(self.out):
            return output_place(self.out, "samples.png", (*PICTURES, ".npy"))
        if self.out.is_dir() and any(self.out.iterdir()):
            raise ValueError(f"--out {self.out} is a folder with files in it; name a new folder")
        return output_place(self.out / "0000.png", "").parent

    def _class(self, names: tuple[str, ...]) -> int | None:
        """The number of the class."""
        label = self.label
        if label is None or label in names:
            return None if label is None else names.index(label)
        if label.isdecimal() and int(label) < len(names):
            return int(label)
        known = f", 0 to {len(names) - 1} ({', '.join(names[:20])})" if names else ""
        raise ValueError(f"--label {label}: the model has {len(names) or 'no'} classes{known}")


def _is_folder(place: Path) -> bool:
    kind = place.suffix.lower()
    return not kind or (place.is_dir() and kind not in (*PICTURES, ".npy"))


def _write_samples(out: Console, images: Tensor, levels: int, place: Path) -> None:
    """Write images in the form that the place asks for."""
    if _is_folder(place):
        for number, image in enumerate(images):
            single = image_grid(image[None], levels, 1, width=1).convert("RGB")
            save_picture(single, place / f"{number:04d}.png")
        out.print(f"{len(images)} files in {strong(place)}")
    elif place.suffix.lower() == ".npy":
        buffer, shape = io.BytesIO(), " × ".join(map(str, images.shape))
        np.save(buffer, images.numpy())
        write(out, place, buffer.getvalue(), f": uint8 of shape {shape}, 0 to {levels - 1}")
    else:
        write(out, place, image_grid(images, levels))


@dataclass(kw_only=True)
class Reconstruct(DataCommand):
    """Encode test images and decode them again; the picture shows each above what came back."""

    count: Count = 128  # How many images, from the first on.
    batch_size: int = 64  # How many to invert at a time.
    out: File = None  # The picture; reconstructions.png if not given, numbered if that is taken.

    then = "mintnet verify {model}"

    def run(self) -> dict[str, Any]:
        check_positive(count=self.count, batch_size=self.batch_size)
        place = output_place(self.out, "reconstructions.png", PICTURES)
        out, model = console(), self.open()
        flow, solver = model.flow, self.chosen_solver()
        images = self.images(model, self.count).images.to(flow.device)
        with Tasks(out) as task:
            progress = task(f"{len(images)} images through the network and back")
            result = reconstruct(flow, images, solver, self.batch_size, progress)
        result.solution.require(REMEDY)
        exact, total, errors = result.exact, len(images), result.errors
        colour = "green" if exact == total else "red"
        out.print(f"{exact} of {total} images came back byte for byte", style=colour)
        words = f"mean ‖x − y‖² / D = {errors.mean():.2e}, worst {errors.max():.2e}"
        out.print(f"{words}, with pixels in [0, 1]", markup=False)
        facts = print_check(out, flow.net, result.solution)
        about = f" ({SHOWN} of {total} are shown)" if total > SHOWN else ""
        path = write(out, place, paired_grid(result, flow.levels, SHOWN), about)
        return {"picture": path, **facts, **result.to_dict()}


@dataclass(kw_only=True)
class Interpolate(DataCommand):
    """Draw the 8 × 8 images between four: angles 0, π/14, …, 7π/14 in both directions."""

    places: Annotated[tuple[int, int, int, int] | None, tyro.conf.arg(name="images")] = None
    """Which four images, by their places in the data set; drawn with --seed if not given."""
    seed: int = 0  # Draws the four images.
    out: File = None  # The picture; interpolation.png if not given, numbered if that is taken.

    then = "mintnet report {model}"

    def run(self) -> dict[str, Any]:
        place = output_place(self.out, "interpolation.png", PICTURES)
        out, model = console(), self.open()
        flow, solver, data = model.flow, self.chosen_solver(), self.images(model)
        drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.seed))
        chosen = list(self.places) if self.places else drawn[:4].tolist()
        names = ", ".join(map(str, chosen))
        if len(chosen) < 4 or not all(0 <= place < len(data) for place in chosen):
            raise ValueError(f"--images takes four places from 0 to {len(data) - 1}; got {names}")
        with Tasks(out) as task, torch.no_grad():
            z = codes_between(flow, flow.encode(data.images[chosen].to(flow.device)))
            solution = flow.solve(z, solver, progress=task("64 images between four"))
        between = flow.to_images(solution.require(REMEDY))
        out.print(f"Between images {names} of {data.name}, in the corners.")
        facts = print_check(out, flow.net, solution)
        path = write(out, place, image_grid(between, flow.levels, 8))
        return {"picture": path, "images": chosen, **facts}
