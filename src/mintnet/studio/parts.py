"""What the views share: pictures, messages, and the code that does the same."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from mintnet.cli.app import MISTAKES
from mintnet.figures import image_grid
from mintnet.models.storage import SHIPPED

PROGRESS = gr.Progress()
"""The default of an argument into which Gradio puts its own progress bar."""


def told(function: Callable[..., Any], *first: Any) -> Callable[..., Iterator[Any]]:
    """Show mistakes as a message on the page, which stays until it is closed.

    ``first`` are arguments that are not components of the page. Gradio shows what is yielded.
    """
    bound = partial(function, *first)

    @wraps(bound)
    def steps(*args: Any, **options: Any) -> Iterator[Any]:
        try:
            found = bound(*args, **options)
            yield from found if inspect.isgenerator(found) else [found]
        except MISTAKES as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    return steps


def bar(progress: gr.Progress, words: str) -> Callable[[int, int], None]:
    """What to tell how much is done and how much there is."""
    return lambda done, total: progress((done, total), desc=f"{words} {done} of {total}")


def picture_input(label: str, number: int = 0) -> tuple[gr.Image, gr.Number]:
    """A picture: the path of a dropped file, or the number of a test image where there is none.

    Views read the file themselves: Gradio would decode it without a bound on its size, and without
    a message where it is broken.
    """
    with gr.Column(min_width=180):
        upload = gr.Image(label=label, height=200, type="filepath", sources=["upload", "clipboard"])
        upload.preprocess = lambda payload: payload.path if payload else None  # type: ignore[method-assign]
        choice = gr.Number(number, precision=0, minimum=0, label="or a test image, by its number")
    return upload, choice


def picture_output(label: str) -> gr.Image:
    """A picture that a view shows, to be downloaded or enlarged."""
    name = "-".join(re.findall("[a-z0-9]+", label.lower()))  # for the tests in a browser
    buttons: Any = ["download", "fullscreen"]
    return gr.Image(label=label, format="png", interactive=False, buttons=buttons, elem_id=name)


def shown(image: Tensor, levels: int, side: int = 224) -> Image.Image:
    """An image (C, H, W) uint8 enlarged to about ``side`` pixels, each pixel a square."""
    return image_grid(image[None], levels, 1, side).convert("RGB")


def show_code(lines: Callable[..., str], inputs: list[Any]) -> None:
    """A foldable "show the code" with lines that follow the inputs."""
    with gr.Accordion("Show the code", open=False):
        start = lines(*(component.value for component in inputs))
        code = gr.Code(start, language="python", label="The same in Python", interactive=False)
    changes = [component.change for component in inputs]
    gr.on(changes, lines, inputs, code, queue=False, trigger_mode="always_last")


def opened(name: str, kind: str = "Flow", model: str = "flow") -> str:
    """The two lines of code that open a model: a shipped one by its name, or from its folder."""
    how = "from_pretrained" if name in SHIPPED else "load"
    return f"import mintnet\n{model} = mintnet.{kind}.{how}({name!r})"
