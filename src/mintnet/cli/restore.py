"""`mintnet restore`: what a picture may have been, behind a mask, noise or few pixels."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from torch import Tensor

from mintnet.analysis.restore import restore
from mintnet.cli.command import Command, Count, File, Folder, Model, Name, Whole
from mintnet.cli.model import OpenModel, open_model
from mintnet.cli.output import PICTURES, Tasks, console, output_place, write
from mintnet.figures import image_grid


@dataclass(kw_only=True)
class Restore(Command):
    """Restore a picture: samples of what it may have been, their mean and how sure that is.

    Writes one picture: what is given, the samples, their mean, and their standard deviation
    (brightest where it is largest). Known pixels come back as they are.
    """

    model: Model
    """A run folder, a saved model folder, or the name of a shipped model."""
    image: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="IMAGE")]
    """A picture file, cropped and resized as for training, or a place in a data set: test:7."""
    mask: File = None
    """A picture of the model's size: what is white in it is unknown."""
    noise: Name = None
    """Standard deviation of the noise for pixels from 0 to 1: a number, or as 25/255."""
    zoom: Whole = None
    """2: the picture has half the model's width and height; its pixels are means of 2 × 2."""
    count: Count = 8
    """Samples: chains, or groups of particles, that are run independently."""
    steps: Whole = None
    """More are better: gradients of each chain (200), or of one layer, particles a sample (16)."""
    seed: int = 0
    """Of what is drawn."""
    label: Whole = None
    """Of a class-conditional model: the class of the picture; if not given, any."""
    data: Folder = None
    """Folder with the data set's files, for places in it."""
    out: File = None
    """The picture; restored.png if not given, numbered if that is taken."""
    device: str = "auto"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    def run(self) -> dict[str, Any]:
        given = {"mask": self.mask, "noise": self.noise, "zoom": self.zoom}
        if sum(way is not None for way in given.values()) != 1:
            raise ValueError("say what is to be restored: one of --mask, --noise and --zoom")
        out, opened = console(), open_model(self.model, self.device)
        flow, place = opened.flow, output_place(self.out, "restored.png", PICTURES)
        mask = None if self.mask is None else read_mask(self.mask, flow.shape)
        image = opened.picture(self.image, self.data) if self.zoom is None else self._small(opened)
        with Tasks(out) as task:
            found = restore(
                flow,
                image,
                mask,
                noise=None if self.noise is None else number(self.noise),
                zoom=self.zoom,
                n=self.count,
                seed=self.seed,
                steps=self.steps,
                labels=self.label,
                progress=task(f"sampling {self.count} pictures"),
            )
        shown = (
            image if self.zoom is None else image.repeat_interleave(2, 1).repeat_interleave(2, 2)
        )
        shown = shown if mask is None else torch.where(mask, (flow.levels - 1) // 2, shown)
        spread = found.spread * ((flow.levels - 1) / found.spread.max().clamp(min=1e-9))
        last = [x.round().to(torch.uint8) for x in (found.mean, spread)]
        sheet = torch.stack([shown, *found.samples, *last])
        write(out, place, image_grid(sheet, flow.levels, min(len(sheet), 10)))
        words = f"acceptance {found.acceptance:.2f}; effective sample size {found.effective:.0f}"
        if found.effective < self.count:
            words += ": the samples are not independent; take more --steps"
        out.print(words)
        figures = {"model": self.model, "image": self.image, "samples": self.count}
        figures |= {"acceptance": found.acceptance, "effective_sample_size": found.effective}
        return {**figures, "mean_spread": float(found.spread.mean()), "out": place}

    def _small(self, opened: OpenModel) -> Tensor:
        """A picture of half the model's size; one of a data set is made from its means."""
        from mintnet.data.folder import read_picture

        path, (c, h, _) = Path(self.image).expanduser(), opened.model.shape
        if not path.is_file():
            whole = opened.picture(self.image, self.data).double()
            return torch.nn.functional.avg_pool2d(whole, 2).round().to(torch.uint8)
        pixels = torch.from_numpy(read_picture(path, h // 2, grey=c == 1).copy())
        return (pixels.double() * ((opened.model.levels - 1) / 255)).round().to(torch.uint8)


def number(text: str) -> float:
    """A number such as 0.1 or 25/255."""
    try:
        return float(Fraction(text.replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--noise is a number such as 0.1 or 25/255; got {text}") from None


def read_mask(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """What is white in a picture file, (H, W) bool."""
    from mintnet.data.folder import open_picture

    try:
        with open_picture(path.expanduser()) as file:
            width, height = file.size
            if (height, width) == shape[1:]:
                return torch.from_numpy(np.array(file.convert("L"))) > 127
    except Exception as error:  # decoders of damaged pictures raise nearly anything
        raise ValueError(f"--mask {path} is not a picture that can be read ({error})") from None
    raise ValueError(
        f"--mask {path} has {width} × {height} pixels; the model has {shape[2]} × {shape[1]}"
    )
