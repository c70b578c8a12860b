"""The part of the demo about a model that comes with the package."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console

from mintnet.cli.output import certificate, print_certificate, write_picture

NAME = "mnist"
SAMPLES = 16


def show_pretrained(out: Console, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Samples, an interpolation and the likelihood of a few test images, as pictures and figures.

    Args:
        out: where to print.
        folder: for the pictures.
        seed: of the samples.
    """
    import torch

    from mintnet.data.mnist_slice import mnist_slice
    from mintnet.figures import image_grid, interpolate, solve_in_batches
    from mintnet.models import Flow

    flow, data = Flow.from_pretrained(NAME), mnist_slice()
    started = time.perf_counter()
    solution = solve_in_batches(flow, flow.sample_latents(SAMPLES, 1.0, seed), None, SAMPLES)
    y = solution.require("This should not happen with a model of the package.")
    seconds = time.perf_counter() - started
    samples, words = write_picture(
        image_grid(flow.to_images(y), flow.levels), folder / "mnist-samples.png"
    )
    facts = certificate(solution)
    out.print(f"{SAMPLES} new digits in {seconds:.1f} s: {words}")
    print_certificate(out, facts)
    with torch.no_grad():
        bits = torch.cat([flow.bits_per_dim(part) for part in data.images.split(32)])
    bpd = float(bits.mean())
    out.print(
        f"{bpd:.3f} bits per dimension for the first {len(data)} test images of MNIST (LeCun, "
        f"Cortes and Burges; CC BY-SA 3.0), which come with the package too."
    )
    between, words = write_picture(
        image_grid(interpolate(flow, data.images[:4]), flow.levels, 8),
        folder / "mnist-interpolation.png",
    )
    out.print(f"Between four of them, in the corners: {words}")
    return {
        "samples": samples,
        "interpolation": between,
        "bits_per_dim": bpd,
        "images": len(data),
        "seconds": seconds,
        **facts,
    }
