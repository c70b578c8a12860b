"""What the views share: models, pictures, messages, and the code that does the same."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from threading import Lock
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from mintnet.cli.app import MISTAKES
from mintnet.cli.model import OpenModel, open_model
from mintnet.data import ImageData
from mintnet.figures import image_grid
from mintnet.models.storage import SHIPPED, locate, read_config

PROGRESS = gr.Progress()  # the default of an argument into which Gradio puts its own progress bar


class Catalogue:
    """Shipped models, the run folders in ``runs``, and those that are named; each is read once."""

    def __init__(self, *names: str) -> None:
        runs = map(str, sorted(Path("runs").glob("*/")))
        quick_first = sorted(SHIPPED, key=lambda name: "mnist" not in name)
        self._open: dict[str, OpenModel] = {}
        self._lock = Lock()
        self.kinds: dict[str, str] = {}
        for name in dict.fromkeys((*names, *quick_first, *runs)):
            try:
                kind = self.kinds[name] = str(read_config(locate(name))["kind"])
            except (ValueError, OSError):
                if name in names:
                    raise
                continue
            if name in names and kind not in ("flow", "classifier"):
                raise ValueError(f"the studio shows models of images; {name} is a {kind}")

    def names(self, kind: str) -> list[str]:
        return [name for name, known in self.kinds.items() if known == kind]

    def open(self, name: str) -> OpenModel:
        """A model of the list, opened once for all users."""
        if name not in self.kinds:
            raise ValueError(f"{name} is not in the list of models; pick one of it")
        with self._lock:
            if name not in self._open:
                self._open[name] = open_model(name)
            return self._open[name]

    def test_images(self, name: str) -> ImageData:
        try:
            return self.open(name).images(None)
        except (ValueError, OSError):
            raise ValueError(f"there are no test images of {name} here; drop a picture") from None

    def picture(self, name: str, upload: str | None, number: float | None) -> Tensor:
        """A picture as the model takes it, (C, H, W) uint8: an upload, or else a test image."""
        if upload is not None:
            return self.open(name).picture(upload)
        data = self.test_images(name)
        if number is None or not 0 <= int(number) < len(data):
            raise ValueError(f"test images have numbers from 0 to {len(data) - 1}; got {number}")
        return data.images[int(number)]


def told(function: Callable[..., Any], *first: Any) -> Callable[..., Iterator[Any]]:
    """The function of an event, its first arguments given; mistakes become messages that stay."""
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
    """A picture: the path of a dropped file, or the number of a test image where there is none."""
    # Views read the file: Gradio would, with no bound on its size and no message if it is broken.
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
