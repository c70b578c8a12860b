"""What the views share: uploads, messages, and the code that does the same."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from mintnet.solvers import InversionError

PROGRESS = gr.Progress()
"""The default of an argument into which Gradio puts its own progress bar."""

MISTAKES = (ValueError, OSError, MemoryError, InversionError)


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    """Show mistakes as a message on the page, which stays until it is closed."""

    def message(error: Exception) -> gr.Error:
        return gr.Error(str(error), duration=None, print_exception=False)

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def steps(*args: Any, **options: Any) -> Iterator[Any]:
            try:
                yield from function(*args, **options)
            except MISTAKES as error:
                raise message(error) from error

        return steps

    @functools.wraps(function)
    def once(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except MISTAKES as error:
            raise message(error) from error

    return once


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


def show_code(lines: Callable[..., str], inputs: list[Any]) -> None:
    """A foldable "show the code" with lines that follow the inputs."""
    with gr.Accordion("Show the code", open=False):
        start = lines(*(component.value for component in inputs))
        code = gr.Code(start, language="python", label="The same in Python", interactive=False)
    changes = [component.change for component in inputs]
    gr.on(changes, lines, inputs, code, queue=False, trigger_mode="always_last")


def opened(name: str) -> str:
    """The two lines of code that open a density model."""
    return f"import mintnet\nflow = mintnet.Flow.{loader(name)}({name!r})"


def loader(name: str) -> str:
    """How a model is opened: by the name of a shipped one, or from its folder."""
    from mintnet.models.storage import SHIPPED

    return "from_pretrained" if name in SHIPPED else "load"
