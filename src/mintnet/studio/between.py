"""Between: from one picture to another through code space, and the 8 × 8 between four."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import gradio as gr
import torch
from PIL import Image

from mintnet.analysis import codes_between
from mintnet.figures import image_grid
from mintnet.studio.catalogue import Catalogue, shown
from mintnet.studio.parts import PROGRESS, opened, picture_input, picture_output, show_code, told

FRAMES = 9


def build(catalogue: Catalogue, model: gr.Dropdown) -> None:
    """The view; ``model`` is the picker of density models."""
    with gr.Row():
        first, second = picture_input("From", 0), picture_input("To", 1)
    button = gr.Button("Between two", variant="primary", elem_id="between")
    frames = gr.State([])
    status = gr.Markdown()
    place = gr.Slider(0, 1, 0.5, step=1 / (FRAMES - 1), label="From one to the other")
    picture, strip = picture_output("The picture at the slider"), picture_output("All of them")
    inputs = [model, *first, *second]
    outputs = [frames, status, picture, strip]
    button.click(told(partial(between_two, catalogue)), [*inputs, place], outputs)
    place.change(_at, [frames, place], picture, show_progress="hidden")
    with gr.Accordion("Two more corners: Fig. 2 of the paper", open=False):
        with gr.Row():
            third, fourth = picture_input("Below the first", 2), picture_input("Below the other", 3)
        more = gr.Button("Between four", elem_id="between-four")
        square = picture_output("The 8 × 8 pictures between four")
        more.click(told(partial(between_four, catalogue)), [*inputs, *third, *fourth], square)
    show_code(_code, [model])


def between_two(
    catalogue: Catalogue,
    name: str,
    *places: Any,
    progress: gr.Progress = PROGRESS,
) -> tuple[list[Image.Image], str, Image.Image | None, Image.Image]:
    """z = cos φ z₁ + sin φ z₂ of the normal codes, φ from 0 to π/2; both ends come back exactly."""
    *choices, place = places
    flow = catalogue.open(name).flow
    ends = [catalogue.picture(name, *choices[k : k + 2]) for k in (0, 2)]
    labels = _labels(flow, ends)
    with torch.no_grad():
        a, b = flow.base.to_normal(flow.encode(torch.stack(ends).to(flow.device), labels=labels))
        angles = [math.pi / 2 * k / (FRAMES - 1) for k in range(FRAMES)]
        z = flow.base.from_normal(torch.stack([math.cos(t) * a + math.sin(t) * b for t in angles]))
        label = None if labels is None else labels[0].expand(FRAMES)
        images = flow.decode(z, labels=label, progress=_layers(progress)).cpu()
    frames = [shown(image, flow.levels) for image in images]
    words = f"{FRAMES} pictures, all verified."
    strip = image_grid(images, flow.levels, FRAMES, width=FRAMES * 100)
    return frames, words, _at(frames, place), strip


def between_four(
    catalogue: Catalogue,
    name: str,
    *places: Any,
    progress: gr.Progress = PROGRESS,
) -> Image.Image:
    """The paper's interpolation, the four pictures in the corners."""
    flow = catalogue.open(name).flow
    corners = [catalogue.picture(name, *places[k : k + 2]) for k in (0, 2, 4, 6)]
    labels = _labels(flow, corners)
    with torch.no_grad():
        z = codes_between(flow, flow.encode(torch.stack(corners).to(flow.device), labels=labels))
        label = None if labels is None else labels[0].expand(len(z))
        images = flow.decode(z, labels=label, progress=_layers(progress))
    return image_grid(images, flow.levels, 8)


def _labels(flow: Any, images: list[torch.Tensor]) -> torch.Tensor | None:
    """One class for all pictures of a class-conditional model: the most probable of the first."""
    if not flow.classes:
        return None
    with torch.no_grad():
        found: torch.Tensor = flow.classify(images[0][None].to(flow.device)).argmax(1)
    return found.expand(len(images))


def _layers(progress: gr.Progress) -> Any:
    return lambda done, total: progress((done, total), desc=f"layer {done} of {total}")


def _at(frames: list[Image.Image], place: float) -> Image.Image | None:
    return frames[round(place * (len(frames) - 1))] if frames else None


def _code(name: str) -> str:
    lines = "images = mintnet.data.load('mnist', 'test').images   # or your own, uint8"
    return (
        f"{opened(name)}\nfrom mintnet.analysis import interpolate\n{lines}\n"
        "pictures = interpolate(flow, images[:4])   # 64, the four in the corners"
    )
