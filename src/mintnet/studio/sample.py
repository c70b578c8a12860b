"""Sample: new pictures, each with its residual check, while they are solved."""

import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import torch

from mintnet.figures import image_grid, save_picture
from mintnet.studio.parts import PROGRESS, Catalogue, opened, show_code, shown, told

AT_ONCE = 4
BY_TURNS = "all by turns"


def build(catalogue: Catalogue, model: gr.Dropdown) -> None:
    """The view; ``model`` is the picker of density models."""
    with gr.Row():
        count = gr.Slider(1, 64, 16, step=1, label="Pictures")
        seed = gr.Number(0, precision=0, label="Seed")
        temperature = gr.Slider(0.1, 1.5, 1.0, step=0.05, label="Temperature")
        label = gr.Dropdown([BY_TURNS], value=BY_TURNS, label="Class", visible=False)
    button = gr.Button("Draw", variant="primary", elem_id="draw")
    status = gr.Markdown("Each picture is the inverse of noise, and is checked by running it back.")
    buttons: Any = ["fullscreen"]
    gallery = gr.Gallery(label="Samples", columns=8, height="auto", format="png", buttons=buttons)
    with gr.Row():
        grid = gr.DownloadButton("Download as PNG", interactive=False)
        archive = gr.DownloadButton("Download as ZIP", interactive=False)
    inputs = [model, count, seed, temperature, label]
    model.change(told(_classes, catalogue), model, label)
    button.click(told(draw, catalogue), inputs, [status, gallery, grid, archive])
    show_code(_code, inputs)


def draw(
    catalogue: Catalogue, name: str, *inputs: Any, progress: gr.Progress = PROGRESS
) -> Iterator[tuple[Any, ...]]:
    """Status, pictures so far, and at the end the files; a few pictures at a time."""
    (count, seed, temperature, label), flow = inputs, catalogue.open(name).flow
    z = flow.sample_latents(int(count), temperature, int(seed or 0))
    labels = None
    if flow.classes:
        chosen = torch.arange(len(z)) % flow.classes
        labels = chosen if label == BY_TURNS else torch.full_like(chosen, int(label))
    images, pictures, verified = [], [], 0
    for first in range(0, len(z), AT_ONCE):
        rows = slice(first, first + AT_ONCE)

        def layers(done: int, total: int, first: int = first) -> None:
            share = (first + AT_ONCE * done / total) / len(z)
            progress(min(share, 1.0), desc=f"layer {done} of {total}")

        part = None if labels is None else labels[rows]
        solution = flow.solve(z[rows], labels=part, progress=layers)
        found = flow.to_images(solution.value), solution.converged, solution.residual
        for value, good, residual in zip(*found, strict=True):
            verified += int(good)
            picture = value if good else torch.zeros_like(value)
            caption = f"{'✓' if good else 'not verified:'} {float(residual):.0e}"
            pictures.append((shown(picture, flow.levels, 128), caption))
            images.append(picture.cpu())
        yield f"{len(images)} of {len(z)} pictures", pictures, gr.skip(), gr.skip()
    grid, archive = _files(torch.stack(images), flow.levels, f"{Path(name).name}-seed-{int(seed)}")
    words = f"{verified} of {len(z)} pictures verified (✓). The number in each is its residual, "
    files = [gr.DownloadButton(value=file, interactive=True) for file in (grid, archive)]
    yield f"{words}max |f(x) − z| / max |z|.", pictures, *files


def _files(images: torch.Tensor, levels: int, stem: str) -> tuple[str, str]:
    """All pictures as one PNG, and single ones in a ZIP; Gradio takes them into its cache."""
    folder = Path(tempfile.mkdtemp(prefix="mintnet-studio-"))
    save_picture(image_grid(images, levels), folder / f"{stem}.png")
    with zipfile.ZipFile(folder / f"{stem}.zip", "w") as archive:
        for number, image in enumerate(images):
            with archive.open(f"{number:04d}.png", "w") as file:
                shown(image, levels, 1).save(file, "PNG")
    return str(folder / f"{stem}.png"), str(folder / f"{stem}.zip")


def _classes(catalogue: Catalogue, name: str) -> gr.Dropdown:
    classes = catalogue.open(name).flow.classes
    return gr.Dropdown([BY_TURNS, *map(str, range(classes))], value=BY_TURNS, visible=classes > 0)


def _code(name: str, count: float, seed: float, temperature: float, label: str) -> str:
    labels = "" if label == BY_TURNS else f", labels={label}"
    arguments = f"{int(count)}, temperature={temperature:g}, seed={int(seed or 0)}{labels}"
    return f"{opened(name)}\nimages = flow.sample({arguments})   # uint8, verified"
