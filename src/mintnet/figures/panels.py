"""Pictures and words of a report, from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from mintnet.figures.grid import image_grid
from mintnet.figures.interpolation import interpolate
from mintnet.figures.layers import layer_rows
from mintnet.figures.reconstruction import Reconstruction, paired_grid
from mintnet.figures.report import Headline, Panel
from mintnet.models import Flow
from mintnet.solvers import InversionError, Solution, Solver


def samples_panel(flow: Flow, solution: Solution) -> Panel:
    """New images, those that are not certified included."""
    images = flow.to_images(solution.value.nan_to_num())
    lost = int((~solution.converged).sum())
    note = f"{len(images)} draws, none left out. {_certified(solution)}"
    return Panel(image_grid(images, flow.levels), note, good=lost == 0)


def reconstructions_panel(flow: Flow, back: Reconstruction) -> Panel:
    """Test images, each above its reconstruction."""
    picture = paired_grid(back, flow.levels)
    exact, total = back.exact, len(back.originals)
    note = (
        "Test images through the network and back; every second row is the reconstruction. "
        f"{exact} of {total} came back byte for byte; the mean error ‖x − y‖² / D is "
        f"{float(back.errors.mean()):.1e} with pixels in [0, 1]."
    )
    return Panel(picture, note, good=exact == total)


def interpolation_panel(flow: Flow, images: Tensor, solver: Solver | None) -> Panel | None:
    """The images between four, or why they are not there; None where there are not four."""
    if len(images) < 4:
        return None
    try:
        between = interpolate(flow, images, solver)
    except InversionError as error:
        return Panel(None, f"Not drawn: {error}", good=False)
    note = (
        "Four test images in the corners, and what lies between their codes: both angles run "
        "over 0, π/14, …, 7π/14."
    )
    return Panel(image_grid(between, flow.levels, 8), note)


def certificate_headlines(back: Reconstruction, drawn: Solution) -> list[Headline]:
    """How many images came back, and the worst residual of all inversions."""
    exact, total = back.exact, len(back.originals)
    worst = max(float(back.solution.residual.max()), float(drawn.residual.max()))
    sure = int(back.solution.converged.sum()) + int(drawn.converged.sum())
    tried = total + len(drawn.residual)
    return [
        Headline(
            f"{exact} / {total}",
            "images back byte for byte",
            f"mean error {float(back.errors.mean()):.1e}",
            good=exact == total,
        ),
        Headline(
            f"{worst:.1e}",
            "worst residual, end to end",
            f"{sure} of {tried} inversions certified",
            good=sure == tried,
        ),
    ]


def _certified(solution: Solution) -> str:
    lost, total = int((~solution.converged).sum()), len(solution.residual)
    if lost:
        return f"{lost} of {total} could not be certified: {solution.message}."
    worst = float(solution.residual.max())
    return f"All inversions are certified: run forward again, they meet their codes to {worst:.1e}."


def layers_note(back: Reconstruction) -> str:
    """The layers' figures in words."""
    rows, total = layer_rows(back.solution), len(back.originals)
    if not rows:
        return ""
    failures = sum(row.failures for row in rows)
    hardest = max(rows, key=lambda row: row.most_steps)
    return (
        f"{total} images, {len(rows)} layers, {failures} failures. Worst residual of a layer "
        f"{max(row.residual for row in rows):.1e}, end to end "
        f"{float(back.solution.residual.max()):.1e}, as shares of the largest |z|. Most steps in "
        f"layer {hardest.number} ({hardest.name}): {hardest.most_steps}."
    )


def progress_pictures(run: Path, most: int = 4) -> list[tuple[bytes, str]]:
    """Some of the grids that a run has drawn, from its first to its last."""
    files = sorted((run / "samples").glob("step_*.png"))
    if len(files) > most:
        files = [files[round(k * (len(files) - 1) / (most - 1))] for k in range(most)]
    return [(file.read_bytes(), f"step {_step(file):,}") for file in files]


def _step(file: Path) -> int:
    digits: Any = file.stem.removeprefix("step_")
    return int(digits) if digits.isdecimal() else 0
