"""Printing for people, and figures for programs."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mintnet.files import write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

    from mintnet.analysis import LayerRow


def console() -> Console:
    """Where commands print."""
    return Console(highlight=False, soft_wrap=True)


def strong(words: object) -> str:
    r"""Words that stand out, taken as they are: names of files may hold brackets."""
    return f"[bold]{escape(str(words))}[/]"


def in_words(value: object) -> str:
    """A value of a model's config for a table."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items() if v not in (None, False))
    return str(value)


PLOTS = (".png", ".svg", ".pdf")
"""What plots can be written as."""

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""What pictures of images can be written as."""


def check_output(path: Path, kinds: Sequence[str] = (), option: str = "--out") -> None:
    """Say before the work begins that what comes of it would be lost.

    Args:
        path: of the file to be written.
        kinds: the endings that it may have; any if there are none.
        option: that named it.
    """
    if kinds and path.suffix.lower() not in kinds:
        *most, last = kinds
        words = f"{', '.join(most)} or {last}" if most else last
        raise ValueError(f"{option} is a {words} file; got {path}")
    try:
        whole = path.expanduser()
        folder = whole.absolute().parent
        while not folder.exists():
            folder = folder.parent
        if whole.is_dir():
            raise IsADirectoryError
        with tempfile.TemporaryFile(dir=folder):  # permissions alone do not tell
            pass
    except (OSError, RuntimeError):  # RuntimeError: there is no such user's home
        raise ValueError(
            f"{option} {path} cannot be written; name a file in a folder of yours"
        ) from None


def check_new_folder(folder: Path) -> None:
    """Raise unless the folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already and not empty; name another folder")


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write figures as JSON, whole or not at all; what is no number becomes null."""
    text = json.dumps(_plain(figures), indent=1, ensure_ascii=False) + "\n"
    write_bytes(path.expanduser(), text.encode())


def free_place(given: Path | None, default: str) -> Path:
    """Where to write: the place that was given, else the default name, numbered if it is taken."""
    if given is not None:
        return given
    path, number = Path(default), 1
    while path.exists():
        number += 1
        path = Path(default).with_stem(f"{Path(default).stem}-{number}")
    return path


def write_picture(picture: Image | bytes, path: Path) -> tuple[Path, str]:
    """Write a picture; gives its path and what to print, which says so if one was replaced."""
    from mintnet.figures import save_picture

    words = written_words(path)
    return save_picture(picture, path), words


def written_words(path: Path) -> str:
    """What to print about a file that is going to be written: also if it replaces another."""
    path = path.expanduser()
    return f"replaced {strong(path)}" if path.is_file() else strong(path)


def print_check(out: Console, facts: dict[str, Any]) -> None:
    """Say how a residual check went, see `analysis.residual_check`."""
    colour = "green" if facts["verified"] == facts["samples"] else "red"
    line = f"[{colour}]{facts['verified']} of {facts['samples']} inversions verified[/]"
    line += f": end-to-end residual {facts['end_to_end_residual']:.1e}"
    if facts["worst_layer_residual"] is not None:
        line += f", worst layer {facts['worst_layer_residual']:.1e} (layer {facts['worst_layer']})"
    out.print(f"{line}, as shares of the largest |z|")


def print_layers(out: Console, rows: Sequence[LayerRow]) -> None:
    """The layers of an inversion as a table; with the growth of errors where it was measured."""
    table = Table(title="Layer by layer", title_justify="left", title_style="bold")
    grown = any(row.error is not None for row in rows)
    columns = ("layer", "what it is", "steps (median)", "most", "worst residual", "failures")
    for name in (*columns, *(("error", "×") if grown else ())):
        table.add_column(name, justify="left" if name == "what it is" else "right")
    for row in rows:
        cells = [str(row.number), row.name, f"{row.median_steps:g}", str(row.most_steps)]
        cells += [f"{row.residual:.1e}", f"[red]{row.failures}[/]" if row.failures else "0"]
        if row.error is not None:
            cells += [f"{row.error:.1e}", f"{row.amplification:.2f}" if row.amplification else ""]
        table.add_row(*cells)
    out.print(table)
    if grown:
        out.print(
            "error: root mean square of the difference to what entered the layer on the way "
            "forward. ×: how much larger than at the next layer, which is inverted before.",
            style="dim",
        )


class Tasks:
    """One task after another: a bar on a terminal, elsewhere plain lines every few seconds."""

    SECONDS = 5.0

    def __init__(self, out: Console) -> None:
        self.out = out

    def __enter__(self) -> Tasks:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        quiet = not self.out.is_terminal
        self.bar = Progress(*columns, console=self.out, transient=True, disable=quiet)
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, words: str) -> Callable[[int, int], None]:
        """Begin a task; gives what to call with how much is done and how much there is."""
        for task in self.bar.task_ids:
            self.bar.remove_task(task)
        if not self.out.is_terminal:
            self.out.print(words, style="dim", markup=False)
        task, told = self.bar.add_task(words, total=None), time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal told
            self.bar.update(task, completed=done, total=total)
            now = time.monotonic()
            if not self.out.is_terminal and now - told > self.SECONDS and done < total:
                told = now
                self.out.print(f"{words}: {100 * done / total:.0f} %", style="dim", markup=False)

        return progress


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None  # not measured
        return value if math.isfinite(value) else str(value)
    return str(value) if isinstance(value, Path) else value
