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
    from mintnet.data.mnist_slice import mnist_slice
    from mintnet.figures import image_grid, interpolate, solve_in_batches
    from mintnet.models import Flow
    from mintnet.models.storage import SHIPPED, read_config
    from mintnet.training import evaluate

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
    found = evaluate(flow, data, batch_size=32)
    known = read_config(SHIPPED[NAME]).get("test_bits_per_dim")
    out.print(
        f"{found.bits_per_dim:.3f} ± {found.standard_error:.3f} bits per dimension for the first "
        f"{len(data)} test images of MNIST (LeCun, Cortes and Burges; CC BY-SA 3.0), which come "
        f"with the package too; all 10,000 have {known}."
    )
    between, words = write_picture(
        image_grid(interpolate(flow, data.images[:4]), flow.levels, 8),
        folder / "mnist-interpolation.png",
    )
    out.print(f"Between four of them, in the corners: {words}")
    return {
        "samples": samples,
        "interpolation": between,
        "bits_per_dim": found.bits_per_dim,
        "standard_error": found.standard_error,
        "images": len(data),
        "seconds": seconds,
        **facts,
    }
