"""`mintnet bench score`: false alarms, and how well odd pictures are told from test images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet import Flow
from mintnet.analysis.origin import machine
from mintnet.analysis.score import Reference, measure, score
from mintnet.cli.command import Command, Count, File, Folder, Model
from mintnet.cli.model import open_model
from mintnet.cli.output import Tasks, console
from mintnet.data import load
from mintnet.figures import image_grid, save_picture
from mintnet.figures.report import overlay
from mintnet.models.batches import Progress
from mintnet.models.storage import save_scores
from mintnet.precision import true_float32
from mintnet.training.data import held_out

from .timing import check_positive, plain_table

PATCH, CASES = 6, 200
Measured = tuple[Tensor, Tensor, Tensor | None]


def odd_pictures(name: str, data: Path, count: int) -> Iterator[tuple[str, Tensor]]:
    """What is to be found: pictures of each kind, (count, C, H, W) uint8, made of test images."""
    x, generator = load(name, "test", data).images[:count], torch.Generator().manual_seed(0)
    count, c, h, _ = x.shape
    colours = torch.randint(0, 256, (count, c, 1, 1), generator=generator)
    yield "constant colour", colours.expand(x.shape).to(torch.uint8).contiguous()
    yield "blurred, σ = 2", blurred(x, 2.0)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    yield "noise, σ = 0.1", to_bytes(x + 25.5 * noise)
    yield "rows shuffled", torch.stack([i[:, torch.randperm(h, generator=generator)] for i in x])
    if c == 3:
        digits = resized(load("mnist", "test", data).images[:count, 0], h)[:, None].double() / 255
        ink, paper = (torch.randint(0, 256, (count, 3, 1, 1), generator=generator) for _ in "ab")
        yield "MNIST in colour", to_bytes(paper + (ink - paper) * digits)
    else:
        parts = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)[:, None, None]
        colour = load("cifar10", "test", data).images[:count].double()
        yield "CIFAR-10 in grey", resized(to_bytes((colour * parts).sum(1)), h)[:, None]
    yield "inverted", 255 - x
    yield "rotated by 90°", x.rot90(1, (2, 3)).contiguous()
    yield "upside down", x.flip(2).contiguous()


def patched(name: str, data: Path) -> tuple[Tensor, Tensor]:
    """Test images with 6 × 6 pixels of another one in them, and where these begin, (cases, 2)."""
    every, generator = load(name, "test", data).images, torch.Generator().manual_seed(7)
    images, others = every[:CASES].clone(), every[1000 : 1000 + CASES]
    places = torch.randint(0, images.shape[-1] - PATCH + 1, (CASES, 4), generator=generator)
    for image, other, (top, left, y, x) in zip(images, others, places.tolist(), strict=True):
        patch = other[:, y : y + PATCH, x : x + PATCH]
        image[:, top : top + PATCH, left : left + PATCH] = patch
    return images, places[:, :2]


def found_patches(unusual: Tensor, places: Tensor) -> tuple[float, float]:
    """How often the highest 6 × 6 window overlaps the patch, and how often a random one would."""
    windows = F.avg_pool2d(unusual[:, None], PATCH, 1)[:, 0]
    side = windows.shape[-1]
    near = (torch.arange(side) - places[..., None]).abs() < PATCH  # (cases, 2, side)
    overlaps = (near[:, 0, :, None] & near[:, 1, None, :]).flatten(1).double()
    best = windows.flatten(1).argmax(1, keepdim=True)
    return float(overlaps.gather(1, best).mean()), float(overlaps.mean())


def auroc(usual: Tensor, odd: Tensor) -> float:
    """The probability that an odd picture has a higher value than a usual one, ties counted half.

    Examples:
        >>> auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
        0.875
    """
    difference = odd[:, None] - usual[None, :]
    return float(((difference > 0).double() + 0.5 * (difference == 0).double()).mean())


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur with reflected borders."""
    reach = int(4 * sigma + 0.5)
    taps = torch.exp(-0.5 * (torch.arange(-reach, reach + 1).double() / sigma) ** 2)
    taps, x = taps / taps.sum(), images.double().flatten(0, 1)[:, None]
    x = F.conv2d(F.pad(x, (reach, reach, 0, 0), "reflect"), taps.reshape(1, 1, 1, -1))
    x = F.conv2d(F.pad(x, (0, 0, reach, reach), "reflect"), taps.reshape(1, 1, -1, 1))
    return to_bytes(x).reshape(images.shape)


def to_bytes(x: Tensor) -> Tensor:
    return x.round().clamp(0, 255).to(torch.uint8)


def resized(images: Tensor, size: int) -> Tensor:
    """Grey images (N, H, W) with a Lanczos filter."""
    from PIL import Image

    pictures = (Image.fromarray(image.numpy()) for image in images)
    small = [np.array(p.resize((size, size), Image.Resampling.LANCZOS)) for p in pictures]
    return torch.from_numpy(np.stack(small))


@dataclass(kw_only=True)
class Score(Command):
    """Share of test images flagged, and AUROC of odd pictures without having seen any.

    Odd pictures are made of MNIST's and CIFAR-10's test images. Raw likelihood stands beside it.
    """

    model: Model
    """mnist or cifar10, or a model of one of them."""
    data: Path
    """Folder with both data sets, each in a subfolder of its name."""
    count: Count = 1000
    """Odd pictures of each kind."""
    test: int = 1000
    """Test images."""
    keep: Folder = None
    """What is measured is kept in this folder, and not measured again."""
    store: Folder = None
    """Write the scores of all held-out images into this model folder."""

    sheet: File = None
    """A picture: two test images, one of each kind and two with patches, above their maps."""

    def run(self) -> dict[str, Any]:
        check_positive(count=self.count, test=self.test)
        out, opened = console(), open_model(self.model, "cpu")
        flow, name = opened.flow, opened.config["data"]["name"]
        every = load(name, "train", self.data).images
        held = every[held_out(len(every), opened.config["validation"])[1]]
        usual = load(name, "test", self.data).images[: self.test]
        with Tasks(out) as task, true_float32():
            if self.store is not None or flow.scores is None:
                reference = Reference.of(flow, held, progress=task("held-out images"))
            else:
                reference = Reference.stored(flow)
            if self.store is not None:
                save_scores(self.store, reference.tensors())
            statistics, nats, _ = self._measured(flow, "test images", usual, task("test images"))
            oddness = reference.fit.oddness(reference.fit.normal_scores(statistics))
            p_values, rows = reference.p_value(oddness), {}
            for kind, images in odd_pictures(name, self.data, self.count):
                found, raw, _ = self._measured(flow, kind, images, task(kind))
                odd = reference.fit.oddness(reference.fit.normal_scores(found))
                both = {"auroc": auroc(oddness, odd), "raw_likelihood": auroc(nats, raw)}
                rows[kind] = both | {"pictures": len(images)}
            images, places = patched(name, self.data)
            _, _, maps = self._measured(flow, "patches", images, task("patches"))
        table = plain_table(f"{self.model}: AUROC", "pictures", "score", "raw likelihood")
        for kind, row in rows.items():
            table.add_row(kind, f"{row['auroc']:.3f}", f"{row['raw_likelihood']:.3f}")
        out.print(table)
        shares = {str(rate): float((p_values <= rate).double().mean()) for rate in (0.01, 0.05)}
        figures: dict[str, Any] = {"model": self.model, "references": len(reference.statistics)}
        figures |= {"test_images": len(usual), "share_flagged": shares, "odd": rows}
        for rate, share in shares.items():
            out.print(f"{100 * share:.2f} % of {len(usual)} test images flagged at {rate}")
        unusual = None if maps is None else reference.standardised(maps, images)
        if unusual is not None:
            hits, chance = found_patches(unusual, places)
            out.print(f"patches: {100 * hits:.0f} % overlapped, by chance {100 * chance:.0f} %")
            figures["patches"] = {"cases": CASES, "overlapped": hits, "by_chance": chance}
        if self.sheet is not None:
            first = [pictures[:1] for _, pictures in odd_pictures(name, self.data, self.count)]
            some = torch.cat([usual[:2], *first, images[:2]])
            shown = score(flow, some, reference=reference).unusual
            if shown is not None:
                pairs = zip(some, shown, strict=True)
                below = torch.stack([overlay(image, m, flow.levels) for image, m in pairs])
                rows_of = torch.cat([some.expand(-1, 3, -1, -1), below])
                save_picture(image_grid(rows_of, flow.levels, len(some), width=800), self.sheet)
        return {**figures, "machine": machine(torch.device("cpu"))}

    def _measured(self, flow: Flow, kind: str, images: Tensor, progress: Progress) -> Measured:
        path = None if self.keep is None else self.keep / f"{self.model}-{kind}-{len(images)}.pt"
        if path is not None and path.is_file():
            return tuple(torch.load(path, weights_only=True))
        found = measure(flow, images, progress=progress)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(found, path)
        return found
