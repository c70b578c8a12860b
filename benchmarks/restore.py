"""`mintnet bench restore`: PSNR of posterior means, beside methods of scikit-image."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mintnet.analysis.origin import machine
from mintnet.analysis.restore import restore
from mintnet.cli.command import Command, Count, DataOptions, File, Model, Whole
from mintnet.cli.model import open_model
from mintnet.cli.output import Tasks, console
from mintnet.figures import image_grid, save_picture

from .timing import check_positive, plain_table

SIGMA = 25 / 255
SETTINGS = {1: (0.035, 1.3, 3, 10), 3: (0.06, 0.9, 5, 5)}
"""By channels, of total variation and non-local means: weight; h / σ, patch size and distance.

They are the best of scans on MNIST and on CIFAR-10: weights from 0.02 to 0.3, h from 0.4 σ to 2 σ,
several sizes.
"""
SHOWN = 4  # samples on the sheet


def hidden(task: str, shape: tuple[int, ...]) -> Tensor:
    """The mask of a task: the lower half, or an 8 × 8 hole in the middle."""
    _, h, w = shape
    mask = torch.zeros(h, w, dtype=torch.bool)
    if task == "half":
        mask[h // 2 :] = True
    else:
        mask[h // 2 - 4 : h // 2 + 4, w // 2 - 4 : w // 2 + 4] = True
    return mask


def others(image: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """What scikit-image makes of a picture (C, H, W) uint8 with pixels in [0, 255]."""
    from skimage.restoration import denoise_nl_means, denoise_tv_chambolle, inpaint_biharmonic

    pixels = image.permute(1, 2, 0).numpy() / 255
    found: dict[str, Any]
    if mask is not None:
        found = {"biharmonic": inpaint_biharmonic(pixels, mask.numpy(), channel_axis=-1)}
    else:
        weight, h, patch, distance = SETTINGS[len(image)]
        smooth: Any = denoise_tv_chambolle
        found = {"total variation": smooth(pixels, weight=weight, channel_axis=-1)}
        windows: dict[str, Any] = {"patch_size": patch, "patch_distance": distance}
        windows |= {"fast_mode": False, "h": h * SIGMA, "sigma": SIGMA, "channel_axis": -1}
        found["non-local means"] = denoise_nl_means(pixels, **windows)
    back = {
        name: torch.from_numpy(np.clip(x, 0, 1).reshape(pixels.shape) * 255)
        for name, x in found.items()
    }
    return {name: x.permute(2, 0, 1) for name, x in back.items()}


def psnr(found: Tensor, truth: Tensor, where: Tensor | None) -> float:
    """In decibels, of the hidden pixels where there are some."""
    square = (found.double() - truth.double()).square()
    square = square if where is None else square[:, where]
    return float(20 * math.log10(255) - 10 * torch.log10(square.mean().clamp(min=1e-6)))


@dataclass(kw_only=True)
class Restore(DataOptions, Command):
    """Restore test images with hidden pixels or noise: PSNR of the mean, and a sheet to look at."""

    model: Model
    """A density model of 8-bit pictures."""
    task: Literal["half", "hole", "noise"] = "half"
    """The lower half hidden, an 8 × 8 hole, or noise of σ = 25/255."""
    images_at: int = 0
    """The first of the test images."""
    count: Count = 100
    """How many."""
    chains: int = 8
    """Samples of each."""
    steps: Whole = None
    """Gradients of each chain, or particles of each sample."""
    seed: int = 0
    """Of noise and chains."""
    sheet: File = None
    """A picture of the first 8: truth, what is given, scikit-image's best, the mean, 4 samples."""

    def run(self) -> dict[str, Any]:
        check_positive(count=self.count, chains=self.chains)
        out, opened = console(), open_model(self.model, "cpu")
        flow, rows, drawn, seconds = opened.flow, list[dict[str, float]](), list[Tensor](), 0.0
        truths = self.images(opened).images[self.images_at :][: self.count]
        generator = torch.Generator().manual_seed(self.seed)
        mask = None if self.task == "noise" else hidden(self.task, flow.shape)
        figures: dict[str, Any] = {}
        with Tasks(out) as task:
            progress = task(f"restoring {len(truths)} pictures")
            for k, truth in enumerate(truths):
                given = truth.clone()
                if mask is None:
                    noise = 255 * SIGMA * torch.randn(truth.shape, generator=generator)
                    given = (truth + noise).round().clamp(0, 255).to(torch.uint8)
                else:
                    given[:, mask] = 128
                began = time.perf_counter()
                how: dict[str, Any] = {"noise": SIGMA} if mask is None else {"mask": mask}
                how |= {"n": self.chains, "steps": self.steps, "seed": self.seed + k}
                found, compared = restore(flow, given, **how), others(given, mask)
                seconds += time.perf_counter() - began
                each = {"given": given, **compared, "mean": found.mean, "sample": found.samples[0]}
                row = {name: psnr(x, truth, mask) for name, x in each.items()}
                rows.append(row | {"acceptance": found.acceptance, "effective": found.effective})
                best = max(compared, key=lambda name: row[name])
                parts = [truth, given, compared[best].round(), found.mean.round()]
                drawn += [x.to(torch.uint8) for x in (*parts, *found.samples[:SHOWN])]
                figures = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
                progress(k + 1, len(truths))
        table = plain_table(f"{self.model}, {self.task}: means of {len(rows)}", "", "PSNR")
        for name in list(figures)[:-2]:
            table.add_row(name, f"{figures[name]:.2f}")
        out.print(table)
        out.print(f"acceptance {figures['acceptance']:.2f}, effective {figures['effective']:.0f}")
        if self.sheet is not None:
            columns = 4 + min(SHOWN, self.chains)
            save_picture(image_grid(torch.stack(drawn[: 8 * columns]), 256, columns), self.sheet)
        ahead = float(np.mean([row["mean"] > max(row[n] for n in compared) for row in rows]))
        known = {"model": self.model, "task": self.task, "pictures": len(rows), "psnr": figures}
        known |= {"chains": self.chains, "steps": self.steps, "share_ahead": ahead}
        seconds /= len(rows)
        return {**known, "seconds_each": seconds, "machine": machine(torch.device("cpu"))}
