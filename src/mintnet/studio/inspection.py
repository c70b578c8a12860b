"""Inspect: the likelihood of a picture, where it comes from, its code, and the way back."""

import math
from typing import Any

import gradio as gr
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mintnet.studio import parts
from mintnet.studio.parts import Catalogue, picture_output, shown, told

NATS, UNUSUAL = "nats of each pixel", "how unusual, for its place and texture"
ORANGE = (240, 120, 30)
SCALE = 4.0  # standard deviations of the code from black to white
CODE = """{}
bits = flow.bits_per_dim(images)         # uint8 images
score = flow.score(images)               # p_value, and map: nats of each pixel
back = flow.decode(flow.encode(images))  # byte for byte"""


def build(catalogue: Catalogue, model: gr.Dropdown) -> None:
    """The view; ``model`` is the picker of density models."""
    with gr.Row():
        upload, number = parts.picture_input("Picture")
        with gr.Column():
            button = gr.Button("Inspect", variant="primary", elem_id="inspect")
            facts = gr.Markdown()
    overlay = gr.State(None)
    with gr.Row():
        chosen = gr.Radio([NATS, UNUSUAL], value=NATS, label="The map shows")
        opacity = gr.Slider(0, 1, 0.6, step=0.05, label="Opacity of the map")
    with gr.Row():
        labels = ("The map", "The code z", "The way back")
        map_picture, code, back = map(picture_output, labels)
    outputs = [facts, overlay, map_picture, code, back]
    button.click(told(inspect, catalogue), [model, upload, number, chosen, opacity], outputs)
    for choice in (chosen, opacity):
        choice.change(_blended, [overlay, chosen, opacity], map_picture, show_progress="hidden")
    parts.show_code(lambda name: CODE.format(parts.opened(name)), [model])


@torch.no_grad()
def inspect(catalogue: Catalogue, name: str, *inputs: Any) -> tuple[Any, ...]:
    """Facts in words, the picture with its maps, both blended, the code, and what came back."""
    *place, chosen, opacity = inputs
    flow, image = catalogue.open(name).flow, catalogue.picture(name, *place)
    images = image[None].to(flow.device)
    label = int(flow.classify(images).argmax()) if flow.classes else None
    nats = -flow.log_prob_map(images, labels=label)[0].sum(0)
    bits = float(nats.sum()) / (flow.dimensions * math.log(2))
    facts = [f"**{bits:.3f} bits per dimension** (one dequantization draw)"]
    maps = {NATS: _heat(nats)}
    if flow.scores is not None:
        found = flow.score(images)
        p_value = f"**p-value {float(found.p_value):.3g}** among held-out images"
        facts += [f"{p_value}; farthest from them: {found.reasons[0]}"]
        maps |= {} if found.unusual is None else {UNUSUAL: _heat(found.unusual[0])}
    if label is not None:
        facts += [f"most probable class: **{label}**"]
    z = flow.encode(images, labels=label)
    solution = flow.solve(z, labels=label)
    returned = flow.to_images(solution.value)[0].cpu()
    same, verified = torch.equal(returned, image), bool(solution.converged.all())
    way = f"{'' if same else 'NOT '}byte for byte, {'' if verified else 'NOT '}verified"
    facts += [f"The way back: {way}, residual {float(solution.residual.max()):.0e}"]
    # The normal code at the places of the pixels: grey is 0, black −2σ, white 2σ.
    normal = flow.base.to_normal(flow.net.to_input_order(z))[0]
    code = shown((255 * (normal / SCALE + 0.5).clamp(0, 1)).to(torch.uint8), 256)
    picture, back = (shown(image, flow.levels), maps), shown(returned, flow.levels)
    return "\n\n".join(facts), picture, _blended(picture, chosen, opacity), code, back


def _heat(nats: Tensor) -> NDArray[np.float64]:
    """The map between 0 and 1: from its 1st to its 99th percentile."""
    values = nats.cpu().double().numpy()
    low, high = np.percentile(values, (1, 99))
    return np.asarray(np.clip((values - low) / max(high - low, 1e-9), 0, 1))


def _blended(
    picture: tuple[Image.Image, dict[str, Any]] | None, chosen: str, opacity: float
) -> Image.Image | None:
    """The picture under a map: orange where the model was surprised."""
    if picture is None:
        return None
    image, maps = picture
    if chosen not in maps:
        raise gr.Error("this model has no reference scores, so nothing is known to be unusual")
    alpha = Image.fromarray((255 * opacity * maps[chosen]).astype(np.uint8))
    alpha = alpha.resize(image.size, Image.Resampling.NEAREST)
    return Image.composite(Image.new("RGB", image.size, ORANGE), image, alpha)
