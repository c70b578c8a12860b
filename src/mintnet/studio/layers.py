"""Layers: Fig. 4a live, the residual of Algorithm 1 in one layer beside the other solvers."""

import io
from typing import Any

import gradio as gr
import torch
from PIL import Image

from mintnet.analysis.layers import layer_rows, solved_layers
from mintnet.bijections import TriangularBijection
from mintnet.figures.style import LIGHT, render
from mintnet.models import Flow
from mintnet.solvers import FixedPoint, Wavefront
from mintnet.studio.parts import Catalogue, opened, picture_output, show_code, told

PICTURES, STEPS = 4, 60
COLUMNS = ["layer", "what it is", "steps (median)", "most", "worst residual"]
CODE = """{}
layer = flow.net.leaves()[{:.0f}]   # squeezes count here
solver = mintnet.FixedPoint(step={:g}, max_steps={}, tolerance=0, keep_trace=True)
solution = layer.solve(z, solver)"""


def build(catalogue: Catalogue, model: gr.Dropdown) -> None:
    """The view; ``model`` is the picker of density models."""
    with gr.Row():
        step = gr.Slider(0.05, 1.95, 0.286, step=0.001, label="α, the step of Algorithm 1")
        layer = gr.Slider(1, 40, 1, step=1, label="Layer, counted from the picture")
    button = gr.Button("Solve this layer", variant="primary", elem_id="solve-layer")
    status, plot = gr.Markdown(), picture_output("Residual against steps")
    table_button = gr.Button("Steps that each layer needs", elem_id="all-layers")
    table = gr.Dataframe(headers=COLUMNS, label="Inversion by the default solver", wrap=True)
    inputs = [model, layer, step]
    model.change(told(_layer_slider, catalogue), model, layer)
    for event in (button.click, step.release):
        event(told(curves, catalogue), inputs, [status, plot])
    table_button.click(told(all_layers, catalogue), model, table)
    show_code(lambda name, k, alpha: CODE.format(opened(name), k - 1, alpha, STEPS), inputs)


@torch.no_grad()
def curves(catalogue: Catalogue, name: str, number: float, step: float) -> tuple[str, Image.Image]:
    """What was found, and the plot of the worst residual of the pictures after each step."""
    layer, x = _entering(catalogue, name, int(number))
    z = layer.transform(x)[0]
    options: dict[str, Any] = {"max_steps": STEPS, "tolerance": 0.0, "keep_trace": True}
    solvers = {
        f"Algorithm 1, α = {step:g}": FixedPoint(step=step, **options),
        "safeguarded Newton": FixedPoint(step=1.0, damped=True, **options),
    }
    traces = {label: layer.solve(z, solver).trace for label, solver in solvers.items()}
    exact = layer.solve(z, Wavefront())

    def draw(axes: Any, theme: Any) -> None:
        for (label, trace), colour in zip(traces.items(), theme.colours, strict=False):
            worst = torch.as_tensor(trace).amax(1).clamp(1e-9, 1e9)
            axes.plot(worst.tolist(), color=colour, label=label)
        floor = max(float(exact.residual.max()), 1e-9)
        axes.axhline(floor, color=theme.quiet, linestyle="--", label="wavefront")
        axes.set(xlabel="step", yscale="log", ylabel="max |f(x) − z| / max |z|")
        axes.legend()

    plot = Image.open(io.BytesIO(render(draw, LIGHT, kind="png")))
    return f"The wavefront: {exact.message}.", plot


@torch.no_grad()
def all_layers(catalogue: Catalogue, name: str) -> list[list[Any]]:
    """The steps of each layer when pictures are inverted by the default solver."""
    flow, images = _pictures(catalogue, name)
    labels = 0 if flow.classes else None
    rows = layer_rows(flow.net, flow.solve(flow.encode(images, labels=labels), labels=labels))
    return [[r.number, r.name, r.median_steps, r.most_steps, f"{r.residual:.1e}"] for r in rows]


def _pictures(catalogue: Catalogue, name: str) -> tuple[Flow, torch.Tensor]:
    """Test images of the model; where there are none, samples of it."""
    flow = catalogue.open(name).flow
    try:
        return flow, catalogue.test_images(name).images[:PICTURES].to(flow.device)
    except ValueError:
        return flow, flow.sample(PICTURES, seed=0)


def _entering(
    catalogue: Catalogue, name: str, number: int
) -> tuple[TriangularBijection, torch.Tensor]:
    """A layer that a solver inverts, and what pictures are when they enter it."""
    flow, images = _pictures(catalogue, name)
    net = flow.given(flow.context(0 if flow.classes else None, len(images)))
    x = flow.pixels.transform((images.to(flow.dtype) + 0.5) / flow.levels)[0]
    for leaf in net.leaves():
        if isinstance(leaf, TriangularBijection):
            number -= 1
            if number == 0:
                return leaf, x
        x = leaf.transform(x)[0]
    raise ValueError("the model has fewer layers than that; move the slider to the left")


def _layer_slider(catalogue: Catalogue, name: str) -> gr.Slider:
    return gr.Slider(1, max(2, len(solved_layers(catalogue.open(name).flow))), 1, step=1)
