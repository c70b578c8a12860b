"""Between: from one picture to another through code space, and the 8 × 8 between four."""

import math
from collections.abc import Callable
from typing import Any

import gradio as gr
import torch
from PIL import Image
from torch import Tensor

from mintnet.analysis import codes_between
from mintnet.figures import image_grid
from mintnet.models import Flow
from mintnet.studio import parts
from mintnet.studio.parts import PROGRESS, Catalogue, picture_input, picture_output, told

FRAMES = 9
Mix = Callable[[Flow, Tensor], Tensor]
ANGLES = [math.pi / 2 * k / (FRAMES - 1) for k in range(FRAMES)]
CODE = """{}
from mintnet.analysis import interpolate
images = mintnet.data.load('mnist', 'test').images   # or your own, uint8
pictures = interpolate(flow, images[:4])   # 64, the four in the corners"""


def build(catalogue: Catalogue, model: gr.Dropdown) -> None:
    """The view; ``model`` is the picker of density models."""
    with gr.Row():
        first, second = picture_input("From", 0), picture_input("To", 1)
    button = gr.Button("Between two", variant="primary", elem_id="between")
    frames, status = gr.State([]), gr.Markdown()
    place = gr.Slider(0, 1, 0.5, step=1 / (FRAMES - 1), label="From one to the other")
    picture, strip = picture_output("The picture at the slider"), picture_output("All of them")
    inputs, outputs = [model, *first, *second], [frames, status, picture, strip]
    button.click(told(between_two, catalogue), [*inputs, place], outputs)
    place.change(_at, [frames, place], picture, show_progress="hidden")
    with gr.Accordion("Two more corners: Fig. 2 of the paper", open=False):
        with gr.Row():
            third, fourth = picture_input("Below the first", 2), picture_input("Below the other", 3)
        more = gr.Button("Between four", elem_id="between-four")
        square = picture_output("The 8 × 8 pictures between four")
        more.click(told(between_four, catalogue), [*inputs, *third, *fourth], square)
    parts.show_code(lambda name: CODE.format(parts.opened(name)), [model])


def between_two(
    catalogue: Catalogue, name: str, *places: Any, progress: gr.Progress = PROGRESS
) -> tuple[Any, ...]:
    """z = cos φ z₁ + sin φ z₂ of the normal codes, φ from 0 to π/2; both ends come back exactly."""

    def mix(flow: Flow, codes: Tensor) -> Tensor:
        a, b = flow.base.to_normal(codes)
        mixed = torch.stack([math.cos(phi) * a + math.sin(phi) * b for phi in ANGLES])
        return flow.base.from_normal(mixed)

    *choices, place = places
    images, levels = _decoded(catalogue, name, choices, mix, progress)
    frames = [parts.shown(image, levels) for image in images]
    strip = image_grid(images, levels, FRAMES, width=FRAMES * 100)
    return frames, f"{FRAMES} pictures, all verified.", _at(frames, place), strip


def between_four(
    catalogue: Catalogue, name: str, *places: Any, progress: gr.Progress = PROGRESS
) -> Image.Image:
    """The paper's interpolation, the four pictures in the corners."""
    return image_grid(*_decoded(catalogue, name, places, codes_between, progress), columns=8)


@torch.no_grad()
def _decoded(
    catalogue: Catalogue, name: str, places: Any, mix: Mix, progress: gr.Progress
) -> tuple[Tensor, int]:
    """Pictures whose codes are mixed from those of others, all of one class; their grey levels."""
    flow, choices = catalogue.open(name).flow, zip(places[::2], places[1::2], strict=True)
    ends = torch.stack([catalogue.picture(name, *choice) for choice in choices]).to(flow.device)
    label = int(flow.classify(ends[:1]).argmax()) if flow.classes else None
    z = mix(flow, flow.encode(ends, labels=label))
    return flow.decode(z, labels=label, progress=parts.bar(progress, "layer")), flow.levels


def _at(frames: list[Image.Image], place: float) -> Image.Image | None:
    return frames[round(place * (len(frames) - 1))] if frames else None
