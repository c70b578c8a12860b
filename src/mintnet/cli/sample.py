"""`mintnet sample`: new images."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mintnet.cli.command import Count, ModelCommand
from mintnet.cli.output import (
    PICTURES,
    certificate,
    check_output,
    console,
    print_certificate,
    progress,
    write_picture,
)


@dataclass(kw_only=True)
class Sample(ModelCommand):
    """Draw new images from a model, as one picture, with the certificate of the inversion."""

    count: Count = 64
    """How many images."""

    out: Path = Path("samples.png")
    """The picture."""

    temperature: float = 1.0
    """Standard deviation of z; below 1, images are more alike and more typical."""

    seed: int = 0
    """Of the draws."""

    batch: int = 64
    """How many to invert at a time."""

    def run(self) -> dict[str, Any]:
        from mintnet.figures import image_grid, solve_in_batches

        if self.count < 1 or self.batch < 1:
            raise ValueError(
                f"-n (--count) and --batch are at least 1; got {self.count} and {self.batch}"
            )
        check_output(self.out, PICTURES)
        out, model = console(), self.open()
        z = model.flow.sample_latents(self.count, self.temperature, self.seed)
        started = time.perf_counter()
        with progress(out, "drawing", self.count) as tick:
            solution = solve_in_batches(
                model.flow, z, self.chosen_solver(), batch=self.batch, tick=tick
            )
        seconds = time.perf_counter() - started
        y = solution.require("Nothing was written. Use --solver auto.")
        path, words = write_picture(
            image_grid(model.flow.to_images(y), model.flow.levels), self.out
        )
        facts = certificate(solution)
        out.print(f"{self.count} image{'s' if self.count > 1 else ''} in {seconds:.1f} s")
        print_certificate(out, facts)
        out.print(words)
        return {
            "picture": path,
            "temperature": self.temperature,
            "seed": self.seed,
            "seconds": seconds,
            **facts,
        }
