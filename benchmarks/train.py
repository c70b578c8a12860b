"""`mintnet bench train`: the step of `mintnet train`, and the same step in eager float32."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor, nn

from mintnet import Flow
from mintnet.analysis.origin import machine
from mintnet.cli.command import Command
from mintnet.cli.model import pick_device
from mintnet.cli.output import console

from .timing import Note, check_positive, forget_peak, peak_gib, plain_table, silent, timed

AUTHORS_BATCH = 32
WARM_UP = 2
LEARNING_RATE = 1e-6
"""So small that the weights hardly move, and every step has the same work."""
COLUMNS = ("batch", "images/s", "ms", "±", "first s", "GiB", "TFLOP/s", "share")
AS_TRAINED, EAGER = "as mintnet train", "eager, float32"


def training_step(flow: Flow, images: Tensor, preset: str, way: str) -> Callable[[], float]:
    """The step of `mintnet train` on one batch, which returns its loss in nats.

    This is the only function here that knows how the training package is built.

    Args:
        flow: the model; it is copied to the device of the images.
        images: the batch, uint8.
        preset: whose recipe is taken.
        way: ``AS_TRAINED`` (on a GPU the fast path, captured) or ``EAGER`` (float32).
    """
    from mintnet.training.devices import Devices, chosen_precision, fast_path
    from mintnet.training.recipe import Recipe
    from mintnet.training.step import DensityTask, Step

    recipe = Recipe.of(preset, batch_size=len(images))
    task = DensityTask(copy.deepcopy(flow).to(images.device).train())
    if way == AS_TRAINED:
        here = Devices(accelerator=images.device.type)
        task.fast, _ = fast_path(task, chosen_precision(recipe.precision, here), here)
    step = Step(task, recipe, len(images), captured=task.fast is not None)
    index = torch.arange(len(images), device=images.device)
    return lambda: step(images, None, index, 0, LEARNING_RATE).means["loss"]


def bench_train(
    flow: Flow,
    preset: str,
    device: torch.device,
    batches: Sequence[int] = (),
    repeats: int = 10,
    note: Note = silent,
) -> dict[str, Any]:
    """Images a second, milliseconds, memory and unmasked work of a training step.

    Images are random and weights are fresh ones moved away from 0: neither changes the time.

    Args:
        flow: the model; it is not changed.
        preset: whose recipe is taken.
        device: where.
        batches: images of a step; if none are given, the authors' 32 and our own choice.
        repeats: steps that are timed, after two that are not.
        note: told what is being measured.
    """
    ours = 512 if device.type == "cuda" else 8 if flow.dimensions <= 1024 else 2
    sizes = list(dict.fromkeys(batches or (AUTHORS_BATCH, ours)))
    check_positive(repeats=repeats, batch_size=min(sizes))
    flow, work = moved_from_start(flow), 3 * unmasked_flops(flow.net, flow.shape)
    ways = (AS_TRAINED, EAGER) if device.type == "cuda" else (AS_TRAINED,)
    rows = []
    for batch in sizes:
        for way in ways:
            note(f"{way}, batch {batch}")
            rows.append(
                {"way": way, "batch": batch, **_row(flow, preset, device, way, batch, repeats)}
            )
            if "milliseconds" in rows[-1]:
                rows[-1]["tflops_unmasked"] = rows[-1]["images_per_second"] * work / 1e12
    return {
        "preset": preset,
        "net": asdict(flow.net.config),
        "gflop_an_image": work / 1e9,
        "matrix_product_tflops": matrix_product_flops(device) / 1e12,
        "machine": machine(device),
        "rows": rows,
    }


def _row(
    flow: Flow, preset: str, device: torch.device, way: str, batch: int, repeats: int
) -> dict[str, Any]:
    """The figures of one way at one batch size, or that it does not fit in memory."""
    from mintnet.training.devices import computing

    generator = torch.Generator().manual_seed(1)
    shape = (batch, *flow.shape)
    images = torch.randint(0, flow.levels, shape, dtype=torch.uint8, generator=generator)
    forget_peak(device)
    begin = time.perf_counter()
    try:
        with computing(tf32=way == AS_TRAINED):  # as `mintnet train` has it
            step = training_step(flow, images.to(device), preset, way)
            loss = step()
            first = time.perf_counter() - begin
            for _ in range(WARM_UP - 1):
                step()
            taken = [timed(step, device)[0] for _ in range(repeats)]
    except torch.OutOfMemoryError:
        return {"failure": "does not fit in memory"}
    if not math.isfinite(loss):
        raise ValueError(f"{way}: the loss of random images is {loss}")
    middle = median(taken)
    low, _, high = quantiles(taken, method="inclusive") if repeats > 1 else taken * 3
    return {
        "loss": loss,
        "first_step_seconds": first,
        "steps": repeats,
        "milliseconds": 1e3 * middle,
        "milliseconds_quartiles": [1e3 * low, 1e3 * high],
        "images_per_second": batch / middle,
        "peak_memory_gib": peak_gib(device),
    }


@torch.no_grad()
def moved_from_start(flow: Flow) -> Flow:
    """A copy of the flow with all kernels moved away from 0, the same for the same flow."""
    moved, generator = copy.deepcopy(flow), torch.Generator().manual_seed(0)
    for name, weight in moved.named_parameters():
        if "weight" in name:
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(noise, alpha=0.5 / math.sqrt(weight[0].numel()))
    return moved


def unmasked_flops(net: nn.Module, shape: tuple[int, int, int]) -> int:
    """Multiplications and additions of one forward pass for an image that no mask clears.

    2 · H · W for each kernel entry; a training step takes three times that. Slopes and
    element-wise work are not counted.
    """
    total = 0
    for leaf in net.chain.leaves():  # type: ignore[operator, union-attr]
        _, height, width = leaf.event_shape or shape
        for module in leaf.modules():
            masks = dict(module.named_buffers(recurse=False))
            for name, weight in module.named_parameters(recurse=False):
                if weight.dim() == 4:
                    mask = masks.get(name.replace("weight", "mask"))
                    entries = weight.numel() if mask is None else int(mask.sum())
                    total += 2 * height * width * entries
    return total


@torch.no_grad()
def matrix_product_flops(device: torch.device, repeats: int = 10) -> float:
    """Operations a second of a large matrix product, on a GPU in bf16."""
    n, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    a @ b
    return 2 * n**3 / min(timed(lambda: a @ b, device)[0] for _ in range(repeats))


@dataclass(kw_only=True)
class Train(Command):
    """Time the training step of a preset: images a second, memory, share of a matrix product."""

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")]
    """The network: digits, mnist, cifar10 or imagenet32. Images are random."""

    batch_size: tuple[int, ...] = ()
    """Images of a step, one or more numbers. Left out: 32, and 512 on a GPU, 8 or 2 on a CPU."""

    repeats: int = 10
    """Steps that are timed, of which the median is taken."""

    device: str = "auto"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    def run(self) -> dict[str, Any]:
        from mintnet.training.devices import SMALL, computing

        out, device = console(), pick_device(self.device)
        torch.manual_seed(0)  # losses of two runs can be compared
        flow = Flow.preset(self.preset)
        threads = 1 if flow.dimensions <= SMALL else None  # as in training
        with computing(tf32=False, threads=threads):
            figures = bench_train(
                flow,
                self.preset,
                device,
                self.batch_size,
                self.repeats,
                note=lambda line: out.print(line, style="dim"),
            )
        product = figures["matrix_product_tflops"]
        title = f"{self.preset}, {figures['machine']['device']}"
        table = plain_table(title, "training step", *COLUMNS)
        for row in figures["rows"]:
            if "failure" in row:
                table.add_row(f"{row['way']}: {row['failure']}", str(row["batch"]))
                continue
            low, high = row["milliseconds_quartiles"]
            memory = row["peak_memory_gib"]
            table.add_row(
                row["way"],
                str(row["batch"]),
                _short(row["images_per_second"]),
                f"{row['milliseconds']:.4g}",
                f"{(high - low) / 2:.2g}",
                _short(row["first_step_seconds"]),
                "–" if memory is None else f"{memory:.2f}",
                _short(row["tflops_unmasked"]),
                f"{row['tflops_unmasked'] / product:.1%}",
            )
        out.print(table)
        out.print(
            f"ms: median, ± half of the interquartile range; first s: until the first step is "
            f"done, captures and compiling included; TFLOP/s: of weights that no mask "
            f"clears; share: of a large matrix product in this run ({product:.3g} TFLOP/s). "
            f"Random images, fresh weights moved away from 0."
        )
        return figures


def _short(number: float) -> str:
    """Three digits, or all before the point."""
    return (
        f"{number:,.0f}" if number >= 100 else f"{number:.3g}" if number >= 1 else f"{number:.3f}"
    )
