"""Printing for people, and figures for programs."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from mintnet.files import write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

    from mintnet.solvers import Solution


def console() -> Console:
    """Where commands print."""
    return Console(highlight=False, soft_wrap=True)


def strong(words: object) -> str:
    r"""Words that stand out, taken as they are: names of files may hold brackets.

    Examples:
        >>> strong("a [b].png")
        '[bold]a \\[b].png[/]'
    """
    return f"[bold]{escape(str(words))}[/]"


def in_words(value: object) -> str:
    """A value of a model's config for a table.

    Examples:
        >>> in_words({"name": "mnist", "grey": False})
        'name mnist'
    """
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

    Examples:
        >>> check_output(Path("plot.txt"), PLOTS)
        Traceback (most recent call last):
        ValueError: --out is a .png, .svg or .pdf file; got plot.txt
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


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write figures as JSON, whole or not at all; what is no number becomes null.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_json(Path(folder, "a.json"), {"bpd": 1.5, "error": math.nan})
        ...     print(Path(folder, "a.json").read_text())
        {
         "bpd": 1.5,
         "error": null
        }
    """
    text = json.dumps(_plain(figures), indent=1, ensure_ascii=False) + "\n"
    write_bytes(path.expanduser(), text.encode())


def write_picture(picture: Image | bytes, path: Path) -> tuple[Path, str]:
    """Write a picture; gives its path and what to print, which says so if one was replaced."""
    from mintnet.figures import save_picture

    words = written_words(path)
    return save_picture(picture, path), words


def written_words(path: Path) -> str:
    """What to print about a file that is going to be written: also if it replaces another.

    Examples:
        >>> written_words(Path("new.png"))
        '[bold]new.png[/]'
    """
    path = path.expanduser()
    return f"replaced {strong(path)}" if path.is_file() else strong(path)


def certificate(solution: Solution) -> dict[str, Any]:
    """The certificate of an inversion as plain data."""
    from mintnet.figures import layer_rows

    layers = layer_rows(solution)
    worst = max(layers, key=lambda row: row.residual, default=None)
    return {
        "samples": len(solution.residual),
        "certified": int(solution.converged.sum()),
        "end_to_end_residual": float(solution.residual.max()),
        "worst_layer_residual": worst.residual if worst else None,
        "worst_layer": worst.number if worst else None,
    }


def print_certificate(out: Console, facts: dict[str, Any]) -> None:
    """Say how good an inversion is."""
    whole = facts["certified"] == facts["samples"]
    colour = "green" if whole else "red"
    line = f"[{colour}]{facts['certified']} of {facts['samples']} inversions certified[/]"
    line += f": end-to-end residual {facts['end_to_end_residual']:.1e}"
    if facts["worst_layer_residual"] is not None:
        line += f", worst layer {facts['worst_layer_residual']:.1e} (layer {facts['worst_layer']})"
    out.print(f"{line}, as shares of the largest |z|")


@contextmanager
def progress(out: Console, words: str, total: float) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, nothing elsewhere; gives a function that advances it."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(words, total=total)

        def advance(amount: float) -> None:
            bar.advance(task, amount)

        yield advance


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
