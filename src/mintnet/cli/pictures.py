"""`mintnet score` and `restore`: how odd a user's pictures are, and what is hidden in them."""

import heapq
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import numpy as np
import torch
import tyro
from rich.markup import escape
from torch import Tensor

from mintnet.analysis.restore import restore
from mintnet.analysis.score import STATISTICS, Reference, has_map, score
from mintnet.cli.command import Count, File, Folder, ModelCommand, Name, Whole
from mintnet.cli.model import OpenModel
from mintnet.cli.output import Tasks, console, new_folder, output_place, print_table, to_csv, write
from mintnet.data.folder import open_picture, pictures
from mintnet.figures.report import Shown, score_page
from mintnet.models.pictures import PICTURES, image_grid
from mintnet.models.storage import SHIPPED, save_scores

ON_PAGE, PRINTED, AT_ONCE = 120, 15, 32  # pictures
Batch = tuple[list[str], Tensor]


class Score(ModelCommand, then="open {page} in a browser"):
    """Find odd pictures: bits per dimension, a p-value and a map of nats for each.

    The p-value is the share of pictures like the model's held-out training images that are at
    least as odd. Writes scores.csv, scores.json and scores.html: the oddest with their maps.
    """

    pictures: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="PICTURES…")]
    """Picture files, or folders of them; cropped and resized as for training."""
    rate: float = 0.01  # Rate of false alarms: pictures with a p-value up to it are flagged.
    reference: Folder = None
    """Pictures like those of the training, but not among them; if not given, the scores that are
    stored with the model. They are stored with a model of yours that has none."""
    draws: int = 1  # Dequantization draws for bits and maps, and for --reference pictures.
    out: Folder = None  # A new or empty folder for results; MODEL-scores, numbered, if not given.

    def run(self) -> dict[str, Any]:
        if not 0 < self.rate < 1:
            raise ValueError(f"--rate lies between 0 and 1; got {self.rate:g}")
        out, opened = console(), self.open()
        flow, place = opened.flow, self.out or output_place(None, f"{opened.label}-scores")
        folder, kinds = new_folder(place), ("csv", "json", "html")
        sheet, data, page = (output_place(folder / f"scores.{kind}", "") for kind in kinds)
        paths = [path for given in self.pictures for path in picture_files(given)]
        if not paths:
            raise ValueError("there are no pictures to score: name files, or folders with some")
        rows, failed = list[dict[str, Any]](), dict[str, str]()
        oddest = list[tuple[float, int, Shown]]()
        with Tasks(out) as task:
            reference = self._reference(opened, task, failed)
            progress = task(f"scoring {len(paths):,} pictures")
            for names, images in _read(paths, opened, failed):
                # The same pixels get the same noise, wherever they stand.
                index = torch.tensor([crc32(image.numpy().tobytes()) for image in images])
                found = score(flow, images, self.draws, reference, index=index)
                for k, name in enumerate(names):
                    facts: dict[str, Any] = {
                        "picture": name,
                        "bits_per_dim": float(found.bits[k]),
                        "p_value": float(found.p_value[k]),
                        "odd": bool(found.flagged(self.rate)[k]),
                        "oddness": float(found.oddness[k]),
                        "reason": STATISTICS[found.reasons[k]],
                    }
                    shown = facts, images[k], None if found.unusual is None else found.unusual[k]
                    oddest.append((-facts["oddness"], len(rows), shown))
                    rows.append(facts)
                oddest = heapq.nsmallest(ON_PAGE, oddest, key=lambda entry: entry[:2])
                progress(len(rows) + len(failed), len(paths))
        for name, why in failed.items():
            out.print(f"[red]left out[/] {escape(name)}: {escape(why)}")
        if not rows:
            raise ValueError(f"none of {len(failed)} pictures could be read")
        words = f"{sum(row['odd'] for row in rows):,} of {len(rows):,} are odd at a rate of false "
        words += f"alarms of {100 * self.rate:g} %"
        if not has_map(flow.given(flow.context(None, 1))):
            words += "; this model is not triangular, so that there are no maps"
        lines = [
            (f"{r['p_value']:.4f}", f"{r['bits_per_dim']:.3f}", r["reason"], escape(r["picture"]))
            for _, _, (r, _, _) in oddest[:PRINTED]
        ]
        print_table(out, "The oddest", ("p-value", "bits/dim", "what is odd", "picture"), lines)
        more = f"; the table has the {PRINTED} oddest, {sheet.name} all"
        out.print(words + more * (len(rows) > PRINTED))
        figures = {"model": self.model, "rate": self.rate, "draws": self.draws, "summary": words}
        figures |= {"references": len(reference.statistics), "pictures": rows, "left_out": failed}
        title, cards = f"{opened.label}: odd pictures", [entry[-1] for entry in oddest]
        html = score_page(title, words, cards, flow.levels)
        write(out, sheet, to_csv(rows[0], (row.values() for row in rows)))
        write(out, data, figures)
        write(out, page, html.encode())
        return {**figures, "page": page}

    def _reference(self, opened: OpenModel, task: Tasks, failed: dict[str, str]) -> Reference:
        """The reference scores, checked to be enough for the rate."""
        flow = opened.flow
        if self.reference is None:
            reference = Reference.stored(flow)
        else:
            batches = [images for _, images in _read(picture_files(self.reference), opened, failed)]
            if not batches:
                raise ValueError(f"--reference {self.reference} holds no picture that can be read")
            images = torch.cat(batches)
            progress = task(f"scoring {len(images):,} reference pictures")
            reference = Reference.of(flow, images, self.draws, progress)
            if flow.scores is None and opened.folder not in SHIPPED.values():
                save_scores(opened.folder, reference.tensors())
        if (count := len(reference.statistics)) + 1 < 1 / self.rate:
            wanted = f"at least {round(1 / self.rate) - 1} reference pictures; there are {count}"
            raise ValueError(f"--rate {self.rate:g} needs {wanted}; raise it, or give --reference")
        return reference


def picture_files(given: Path) -> list[Path]:
    """A file, or all pictures in a folder."""
    path = given.expanduser()
    if not path.exists():
        raise ValueError(f"there is no picture and no folder {given}")
    return pictures(path) if path.is_dir() else [path]


def _read(paths: list[Path], opened: OpenModel, failed: dict[str, str]) -> Iterator[Batch]:
    """Names and images, some at a time; why a file is left out goes into ``failed``."""
    for start in range(0, len(paths), AT_ONCE):
        images = dict[str, Tensor]()
        for name in map(str, paths[start : start + AT_ONCE]):
            try:
                images[name] = opened.picture(name)
            except ValueError as error:
                failed[name] = str(error).removeprefix(f"{name}: ")
        if images:
            yield list(images), torch.stack(list(images.values()))


class Restore(ModelCommand, then="mintnet studio {model}, to paint masks with a brush"):
    """Restore a picture: samples of what it may have been, their mean and how sure that is.

    Writes one picture: what is given, the samples, their mean, and their standard deviation
    (brightest where it is largest). Known pixels come back as they are.
    """

    image: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="IMAGE")]
    """A picture file, cropped and resized as for training, or a place in a data set: test:7."""
    mask: File = None  # A picture of the model's size: what is white in it is unknown.
    noise: Name = None  # Its standard deviation for pixels from 0 to 1: a number, or as 25/255.
    zoom: Whole = None  # 2: the picture has half the model's size; pixels are means of 2 × 2.
    count: Count = 8  # Samples: chains, or groups of particles, that are run independently.
    # More are better: gradients of each chain (200), or of one layer, particles a sample (16).
    steps: Whole = None
    seed: int = 0  # Of what is drawn.
    label: Name = None  # Name or number of the class, if the model has them; any if not given.
    data: Folder = None  # Folder with the data set's files, for places in it.
    out: File = None  # The picture; restored.png if not given, numbered if that is taken.

    def run(self) -> dict[str, Any]:
        if sum(way is not None for way in (self.mask, self.noise, self.zoom)) != 1:
            raise ValueError("say what is to be restored: one of --mask, --noise and --zoom")
        out, opened = console(), self.open()
        flow, place = opened.flow, output_place(self.out, "restored.png", PICTURES)
        mask = None if self.mask is None else read_mask(self.mask, flow.shape)
        shrink = 1 if self.zoom is None else 2
        image = opened.picture(self.image, self.data, shrink)
        options: dict[str, Any] = {"n": self.count, "seed": self.seed, "steps": self.steps}
        options |= {"noise": self._sigma(), "zoom": self.zoom}
        options["labels"] = opened.label_of(self.label)
        with Tasks(out) as task:
            bar = task(f"sampling {self.count} pictures")
            found = restore(flow, image, mask, progress=bar, **options)
        shown = image.repeat_interleave(shrink, 1).repeat_interleave(shrink, 2)
        shown = shown if mask is None else torch.where(mask, (flow.levels - 1) // 2, shown)
        spread = found.spread * ((flow.levels - 1) / found.spread.max().clamp(min=1e-9))
        last = [x.round().to(torch.uint8) for x in (found.mean, spread)]
        sheet = torch.stack([shown, *found.samples, *last])
        write(out, place, image_grid(sheet, flow.levels, min(len(sheet), 10)))
        size = f"{found.effective:.3g}" if self.count > 1 else "not known of one chain"
        words = f"acceptance {found.acceptance:.2f}; effective sample size {size}"
        if found.effective < self.count or not found.acceptance:
            words += ": the samples are not independent; take more --steps"
        out.print(words)
        figures = {"model": self.model, "image": self.image, "samples": self.count}
        figures |= {"acceptance": found.acceptance, "effective_sample_size": found.effective}
        return {**figures, "mean_spread": float(found.spread.mean()), "out": place}

    def _sigma(self) -> float | None:
        try:
            return None if self.noise is None else float(Fraction(self.noise.replace(" ", "")))
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"--noise is a number such as 25/255; got {self.noise}") from None


def read_mask(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """What is white in a picture file, (H, W) bool."""
    own = f"the model has {shape[2]} × {shape[1]}"
    if not path.expanduser().is_file():
        words = f"expected a picture, white where pixels are unknown; {own} of them"
        raise ValueError(f"--mask {path}: there is no such file; {words}")
    try:
        with open_picture(path.expanduser()) as file:
            width, height = file.size
            if (height, width) == shape[1:]:
                return torch.from_numpy(np.array(file.convert("L"))) > 127
    except Exception as error:  # decoders of damaged pictures raise nearly anything
        raise ValueError(f"--mask {path} is not a picture that can be read ({error})") from None
    raise ValueError(f"--mask {path} has {width} × {height} pixels; {own}")
