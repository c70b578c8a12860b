"""Restore: paint over a picture, and see what the model would put there."""

from typing import Any

import gradio as gr
import numpy as np
import torch
from PIL import Image

from mintnet.studio import parts
from mintnet.studio.parts import PROGRESS, Catalogue, picture_output, shown, told

SIDE = 448
CODE = """{}
mask = torch.zeros(*image.shape[1:], dtype=torch.bool)  # True: hidden
mask[10:18, 10:18] = True
found = flow.restore(image, mask=mask, n={:.0f}, seed={:.0f})"""


def build(catalogue: Catalogue, model: gr.Dropdown) -> None:
    """The view; ``model`` is the picker of density models."""
    with gr.Row():
        upload, number = parts.picture_input("Picture")
        with gr.Column():
            take = gr.Button("Take this picture", elem_id="take")
            count = gr.Slider(1, 16, 6, step=1, label="Completions")
            seed = gr.Number(0, precision=0, label="Seed")
    canvas: dict[str, Any] = {"canvas_size": (SIDE, SIDE), "fixed_canvas": True, "layers": False}
    canvas |= {"type": "pil", "sources": (), "transforms": ()}
    brush = gr.Brush(default_size=50, colors=["#f0781e"], color_mode="fixed")
    words = "Paint over what is to be completed"
    editor = gr.ImageEditor(label=words, elem_id="brush", brush=brush, **canvas)
    button = gr.Button("Complete", variant="primary", elem_id="complete")
    status = gr.Markdown()
    gallery = gr.Gallery(label="Completions", columns=8, format="png", buttons=["fullscreen"])
    with gr.Row():
        mean, spread = picture_output("Their mean"), picture_output("Where they differ")
    picture = [model, upload, number]
    take.click(told(_taken, catalogue), picture, editor)
    inputs, outputs = [*picture, editor, count, seed], [status, gallery, mean, spread]
    button.click(told(complete, catalogue), inputs, outputs)
    used = [model, count, seed]
    parts.show_code(lambda name, n, seed: CODE.format(parts.opened(name), n, seed or 0), used)


def complete(
    catalogue: Catalogue, name: str, *inputs: Any, progress: gr.Progress = PROGRESS
) -> tuple[Any, ...]:
    """Words about the chains, the completions, their mean and their standard deviation."""
    *place, painted, count, seed = inputs
    flow, image = catalogue.open(name).flow, catalogue.picture(name, *place)
    mask, bar = _mask(painted, flow.shape), parts.bar(progress, "step")
    found = flow.restore(image, mask, n=int(count), seed=int(seed or 0), progress=bar)
    pictures = [shown(sample, flow.levels, 160) for sample in found.samples]
    spread = 255 * found.spread.mean(0, keepdim=True) / max(float(found.spread.max()), 1e-9)
    words = f"{int(mask.sum())} of {mask.numel()} pixels completed; acceptance "
    words += f"{found.acceptance:.2f}, effective sample size {found.effective:.1f}"
    mean = shown(found.mean.round().to(torch.uint8), flow.levels)
    return words, pictures, mean, shown(spread.to(torch.uint8), 256)


def _taken(catalogue: Catalogue, name: str, *place: Any) -> dict[str, Any]:
    levels = catalogue.open(name).model.levels
    picture = shown(catalogue.picture(name, *place), levels, SIDE)
    picture = picture.resize((SIDE, SIDE), Image.Resampling.NEAREST)
    return {"background": picture, "layers": [], "composite": picture}


def _mask(painted: dict[str, Any] | None, shape: tuple[int, ...]) -> torch.Tensor:
    """Where more than half of a pixel is painted over, (H, W)."""
    if painted is None or painted.get("background") is None:
        raise ValueError("take a picture first, then paint over it")
    size = shape[2], shape[1]
    layers = [layer.convert("RGBA").getchannel("A") for layer in painted["layers"]]
    covers = [np.asarray(layer.resize(size, Image.Resampling.BOX)) > 127 for layer in layers]
    return torch.from_numpy(np.any([np.zeros((shape[1], shape[2]), bool), *covers], axis=0))
