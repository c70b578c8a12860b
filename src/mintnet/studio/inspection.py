"""Inspect: the likelihood of a picture, where it comes from, its code, and the way back."""

from __future__ import annotations

from functools import partial
from typing import Any

import gradio as gr
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mintnet.models import Flow
from mintnet.studio.catalogue import Catalogue, shown
from mintnet.studio.parts import opened, picture_input, picture_output, show_code, told

ORANGE = (240, 120, 30)
SCALE = 4.0  # standard deviations of the code from black to white


def build(catalogue: Catalogue, model: gr.Dropdown) -> None:
    """The view; ``model`` is the picker of density models."""
    with gr.Row():
        upload, number = picture_input("Picture")
        with gr.Column():
            button = gr.Button("Inspect", variant="primary", elem_id="inspect")
            facts = gr.Markdown()
    overlay = gr.State(None)
    opacity = gr.Slider(0, 1, 0.6, step=0.05, label="Opacity of the map")
    with gr.Row():
        map_picture = picture_output("Nats of each pixel")
        code = picture_output("The code z")
        back = picture_output("The way back")
    outputs = [facts, overlay, map_picture, code, back]
    button.click(told(partial(inspect, catalogue)), [model, upload, number, opacity], outputs)
    opacity.change(_blended, [overlay, opacity], map_picture, show_progress="hidden")
    show_code(_code, [model])


@torch.no_grad()
def inspect(
    catalogue: Catalogue, name: str, upload: str | None, number: float | None, opacity: float
) -> tuple[Any, ...]:
    """Facts in words, the picture with its map, both blended, the code, and what came back."""
    flow = catalogue.open(name).flow
    image = catalogue.picture(name, upload, number)
    images = image[None].to(flow.device)
    label = int(flow.classify(images).argmax()) if flow.classes else None
    nats = -flow.log_prob_map(images, labels=label)[0].sum(0)
    z = flow.encode(images, labels=label)
    solution = flow.solve(z, labels=label)
    returned = flow.to_images(solution.value)[0].cpu()
    bits = float(nats.sum()) / (flow.dimensions * 0.6931471805599453)
    exact = bool(solution.converged.all()) and torch.equal(returned, image.cpu())
    lines = [
        f"**{bits:.3f} bits per dimension** (one dequantization draw)",
        f"{float(nats.sum()):.1f} nats in all, the sum of the map",
        f"The way back: {'byte for byte' if exact else 'NOT the same picture'}, "
        f"{'verified' if bool(solution.converged.all()) else 'NOT verified'}, "
        f"residual {float(solution.residual.max()):.0e}",
    ]
    if label is not None:
        lines.insert(0, f"Most probable class: **{label}**")
    picture = shown(image, flow.levels), _heat(nats)
    return (
        "\n\n".join(lines),
        picture,
        _blended(picture, opacity),
        _code_picture(flow, z[0]),
        shown(returned, flow.levels),
    )


def _heat(nats: Tensor) -> NDArray[np.float64]:
    """The map between 0 and 1: from its 1st to its 99th percentile."""
    values = nats.cpu().double().numpy()
    low, high = np.percentile(values, (1, 99))
    return np.asarray(np.clip((values - low) / max(high - low, 1e-9), 0, 1))


def _blended(picture: tuple[Image.Image, Any] | None, opacity: float) -> Image.Image | None:
    """The picture under its map: orange where the model was surprised."""
    if picture is None:
        return None
    image, heat = picture
    alpha = Image.fromarray((255 * opacity * heat).astype(np.uint8))
    alpha = alpha.resize(image.size, Image.Resampling.NEAREST)
    return Image.composite(Image.new("RGB", image.size, ORANGE), image, alpha)


def _code_picture(flow: Flow, z: Tensor) -> Image.Image:
    """The normal code at the places of the pixels: grey is 0, black −2σ, white 2σ."""
    u = flow.base.to_normal(flow.net.to_input_order(z[None]))[0]
    grey = (u / SCALE + 0.5).clamp(0, 1)
    return shown((255 * grey).to(torch.uint8), 256)


def _code(name: str) -> str:
    return (
        f"{opened(name)}\nbits = flow.bits_per_dim(images)         # uint8 images\n"
        "nats = -flow.log_prob_map(images)        # of each entry\n"
        "back = flow.decode(flow.encode(images))  # byte for byte"
    )
