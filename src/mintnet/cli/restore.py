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
from mintnet.cli.command import Count, File, Folder, ModelCommand, Name, Whole
from mintnet.cli.output import PICTURES, Tasks, console, output_place, write
from mintnet.figures import image_grid


@dataclass(kw_only=True)
class Restore(ModelCommand):
    """Restore a picture: samples of what it may have been, their mean and how sure that is.

    Writes one picture: what is given, the samples, their mean, and their standard deviation
    (brightest where it is largest). Known pixels come back as they are.
    """

    image: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="IMAGE")]
    """A picture file, cropped and resized as for training, or a place in a data set: test:7."""
    mask: File = None  # A picture of the model's size: what is white in it is unknown.
    noise: Name = None
    """Standard deviation of the noise for pixels from 0 to 1: a number, or as 25/255."""
    zoom: Whole = None
    """2: the picture has half the model's width and height; its pixels are means of 2 × 2."""
    count: Count = 8  # Samples: chains that are run independently.
    steps: int = 200  # Gradients of each chain; more, and the chains mix better.
    seed: int = 0  # Of the chains.
    label: Whole = None
    """Of a class-conditional model: the class of the picture; if not given, any."""
    data: Folder = None  # Folder with the data set's files, for places in it.
    out: File = None  # The picture; restored.png if not given, numbered if that is taken.

    def run(self) -> dict[str, Any]:
        ways = self.mask, self.noise, self.zoom
        if sum(way is not None for way in ways) != 1:
            raise ValueError("say what is to be restored: one of --mask, --noise and --zoom")
        out, opened = console(), self.open()
        flow, place = opened.flow, output_place(self.out, "restored.png", PICTURES)
        mask = None if self.mask is None else read_mask(self.mask, flow.shape)
        shrink = 1 if self.zoom is None else 2
        image = opened.picture(self.image, self.data, shrink)
        options: dict[str, Any] = {"n": self.count, "seed": self.seed, "steps": self.steps}
        options |= {"noise": self._sigma(), "zoom": self.zoom, "labels": self.label}
        with Tasks(out) as task:
            bar = task(f"sampling {self.count} pictures")
            found = restore(flow, image, mask, progress=bar, **options)
        shown = image.repeat_interleave(shrink, 1).repeat_interleave(shrink, 2)
        shown = shown if mask is None else torch.where(mask, (flow.levels - 1) // 2, shown)
        spread = found.spread * ((flow.levels - 1) / found.spread.max().clamp(min=1e-9))
        last = [x.round().to(torch.uint8) for x in (found.mean, spread)]
        sheet = torch.stack([shown, *found.samples, *last])
        write(out, place, image_grid(sheet, flow.levels, min(len(sheet), 10)))
        words = f"acceptance {found.acceptance:.2f}; effective sample size {found.effective:.0f}"
        if found.effective < self.count:
            words += ": the chains have not mixed; take more --steps"
        out.print(words)
        figures = {"model": self.model, "image": self.image, "samples": self.count}
        figures |= {"acceptance": found.acceptance, "effective_sample_size": found.effective}
        return {**figures, "mean_spread": float(found.spread.mean()), "out": place}

    def _sigma(self) -> float | None:
        """The noise, written as 0.1 or 25/255."""
        try:
            return None if self.noise is None else float(Fraction(self.noise.replace(" ", "")))
        except (ValueError, ZeroDivisionError):
            words = f"--noise is a number such as 0.1 or 25/255; got {self.noise}"
            raise ValueError(words) from None


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
