"""`mintnet bench train`: a step of training, ours against Eq. 2 and Eq. 3 written out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from mintnet.cli.command import Command
from mintnet.cli.output import PLOTS, check_output, console, write_picture

COLUMNS = ("way", "batch", "images/s", "×", "ms", "±", "GiB", "TFLOP/s", "product", "copy")


@dataclass(kw_only=True)
class BenchTrain(Command):
    """Time a step of training, ours against textbook versions: speed, memory, ceilings."""

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")]
    """The network: digits, mnist, cifar10 or imagenet32. Images are random."""

    batches: tuple[int, ...] | None = None
    """Images in a step. Left out: the authors' 32 and, on a GPU, 512; on a CPU 8 or 2."""

    device: str = "auto"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    repeats: int = 10
    """Steps that are timed, of which the median is taken."""

    time_limit: float = 60.0
    """Seconds of a row after which no further step is begun."""

    couplings: int = 0
    """Width of affine couplings after each squeeze; the presets have none."""

    ways: tuple[str, ...] | None = None
    """Only ways with one of these words in their names, such as ours, textbook, or fast."""

    no_compile: bool = False
    """On a CPU, leave out torch.compile, which takes minutes to compile."""

    sweep: bool = False
    """Also measure ours over batch sizes, and over images of 8 × 8 to 64 × 64."""

    out: Path = Path("bench-train.png")
    """The plot, as .png, .svg or .pdf; with --sweep a second one beside it."""

    def run(self) -> dict[str, Any]:
        import torch

        from mintnet.bench import bench_train
        from mintnet.bench.steps import chosen_ways, ways_for
        from mintnet.cli.model import pick_device
        from mintnet.figures import render
        from mintnet.figures.bench import draw_train, draw_train_sweep
        from mintnet.models import Flow
        from mintnet.training.recipe import recipe_for

        check_output(self.out, PLOTS)
        out, device = console(), pick_device(self.device)
        torch.manual_seed(0)  # losses of two runs can be compared
        flow = Flow.preset(self.preset)
        if self.couplings:
            flow = flow.like(replace(flow.net.config, couplings=self.couplings))
        ways = ways_for(flow, device, compile=not self.no_compile)
        if self.ways is not None:
            ways = chosen_ways(ways, self.ways)
        figures = bench_train(
            flow,
            device,
            self.batches,
            recipe_for(self.preset),
            self.repeats,
            self.time_limit,
            ways=ways,
            sweep=self.sweep,
            note=lambda line: out.print(line, style="dim"),
        )
        figures = {"preset": self.preset, **figures}
        out.print(_table(f"{self.preset}, {figures['machine']['device']}", figures["rows"]))
        _say(out, figures)
        kind = self.out.suffix.lower()[1:]
        out.print(
            write_picture(render(partial(draw_train, figures=figures), kind=kind), self.out)[1]
        )
        if self.sweep:
            rows = figures["over_batch"] + figures["over_size"]
            out.print(_table(f"{figures['sweep_way']}, as cost grows", rows))
            second = self.out.with_stem(f"{self.out.stem}-sweep")
            picture = render(partial(draw_train_sweep, figures=figures), kind=kind)
            out.print(write_picture(picture, second)[1])
        return figures


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    sizes = any("size" in row for row in rows)
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in (*COLUMNS[:2], *(["size"] if sizes else []), *COLUMNS[2:]):
        left = heading == "way"
        table.add_column(heading, justify="left" if left else "right", no_wrap=not left)
    for row in rows:
        first = [row["way"], str(row["batch"]), *([f"{row['size']}²"] if sizes else [])]
        if "failure" in row:
            table.add_row(f"{row['way']}: {row['failure']}", *first[1:])
            continue
        low, high = row["milliseconds_quartiles"]
        memory, speedup = row["peak_memory_gib"], row.get("speedup")
        table.add_row(
            *first,
            _short(row["images_per_second"]),
            "–" if speedup is None else _short(speedup),
            _short(row["milliseconds"]),
            "–" if row["steps"] == 1 else _short((high - low) / 2),
            "–" if memory is None else f"{memory:.2f}",
            _short(row["tflops_unmasked"]),
            f"{row['share_of_matrix_product']:.1%}",
            f"{row['share_of_copy']:.1%}",
        )
    return table


def _short(number: float) -> str:
    """Three digits, or all before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _say(out: Console, figures: dict[str, Any]) -> None:
    """What the shares are of, and whether compiling pays."""
    limits = figures["ceilings"]
    products = ", ".join(f"{name} {t:.3g}" for name, t in limits["matrix_tflops"].items())
    out.print(
        f"textbook: Eq. 2 and Eq. 3 written out, all K × K products of Eq. 3 in one tensor, or its "
        f"two sums in turn; ×: images/s over the textbook's best; ms: median, ± half of the "
        f"interquartile range; TFLOP/s: weights that no mask clears; product, copy: shares of "
        f"what a large matrix product ({products} TFLOP/s) and a large copy "
        f"({limits['copy_gb_per_second']:.3g} GB/s) reached in this run, the copy for what a "
        f"step moves at least. Random images, fresh weights moved away from 0."
    )
    done = {(r["kind"], r["batch"]): r for r in figures["rows"] if "failure" not in r}
    for (kind, batch), row in done.items():
        plain = done.get(("plain", batch))
        if kind == "compiled" and plain:
            gain = plain["milliseconds"] - row["milliseconds"]
            words = f"compiling took {row['first_step_seconds']:.0f} s at batch {batch} and "
            steps = 1e3 * row["first_step_seconds"] / gain if gain > 0 else 0
            out.print(words + (f"pays after {steps:,.0f} steps" if steps else "does not pay"))
