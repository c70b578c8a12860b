"""Explain: what an invertible classifier sees in a picture, mapped back to pictures."""

import io
from typing import Any

import gradio as gr
import torch
from PIL import Image

from mintnet.analysis import Explainer
from mintnet.figures.classification import explanation_picture
from mintnet.studio import parts
from mintnet.studio.parts import PROGRESS, Catalogue, picture_input, picture_output, told

SECOND = "the second most probable"
CODE = """{}
features = clf.features(images)      # uint8 images
back = clf.invert(features)"""


def build(catalogue: Catalogue) -> None:
    """The view, with its own picker of classifiers."""
    names = catalogue.names("classifier")
    model = gr.Dropdown(names, value=names[0], label="Classifier", filterable=False)
    with gr.Row():
        picture = picture_input("Picture", 7)
        with gr.Column(min_width=180):
            other = gr.Textbox(SECOND, label="The class to go to")
            partner = gr.Number(0, precision=0, label="The other picture, a test image")
    with gr.Row():
        answer = gr.Button("What is it?", variant="primary", elem_id="classify")
        why = gr.Button("Explain (up to a minute)", elem_id="explain")
    label = gr.Label(num_top_classes=5, label="Probabilities")
    sheet = picture_output("Mapped back to pictures")
    inputs = [model, *picture]
    answer.click(told(probabilities, catalogue), inputs, label)
    why.click(told(explanation, catalogue), [*inputs, other, partner], [label, sheet])
    parts.show_code(lambda name: CODE.format(parts.opened(name, "Classifier", "clf")), [model])


@torch.no_grad()
def probabilities(catalogue: Catalogue, name: str, *picture: Any) -> dict[str, float]:
    """The probability of each class."""
    opened, image = catalogue.open(name), catalogue.picture(name, *picture)
    found = opened.classifier(image[None].to(opened.model.device))[0].exp()
    return dict(zip(opened.class_names(), found.tolist(), strict=True))


def explanation(
    catalogue: Catalogue, name: str, *inputs: Any, progress: gr.Progress = PROGRESS
) -> tuple[dict[str, float], Image.Image]:
    """Features mapped back, what cannot be told apart, and the way to another class."""
    *picture, other, partner = inputs
    found = probabilities(catalogue, name, *picture)
    order = sorted(found, key=lambda key: -found[key])
    goal = order[1] if other.strip() in ("", SECOND) else other.strip()
    if goal not in found or goal == order[0]:
        there = ", ".join(key for key in found if key != order[0])
        raise ValueError(f"expected another class to go to, one of {there}; got {goal}")
    opened, image = catalogue.open(name), catalogue.picture(name, *picture)
    explainer = Explainer(opened.classifier)
    progress(0.05, desc="features mapped back")
    paths = [explainer.there_and_back(image)]
    progress(0.1, desc="what the classifier cannot tell apart")
    paths.append(explainer.held(image, catalogue.picture(name, None, partner)))
    progress(0.6, desc=f"the way to class {goal}")
    paths.append(explainer.towards(image, list(found).index(goal)))
    title = f"What {name} sees: {order[0]}, {100 * found[order[0]]:.1f} %"
    sheet = explanation_picture(paths, opened.model.levels, tuple(found), title)
    return found, Image.open(io.BytesIO(sheet))
