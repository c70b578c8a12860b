"""Printing for people, and figures for programs."""

import csv
import io
import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mintnet.figures import save_picture
from mintnet.files import is_special, write_bytes
from mintnet.training.output import Progress

Tasks = Progress


def console() -> Console:
    """Where commands print."""
    return Console(highlight=False, soft_wrap=True)


def strong(words: object) -> str:
    """Words that stand out, taken as they are: names of files may hold brackets."""
    return f"[bold]{escape(str(words))}[/]"


def print_commands(out: Console, commands: dict[str, str]) -> None:
    """A line for each command, with words about it."""
    width = max(map(len, commands))
    for command, words in commands.items():
        out.print(f"  {strong(command)}{' ' * (width - len(command))}  {words}")


def print_table(out: Console, title: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
    """A table; all columns but "what it is" are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name == "what it is" else "right")
    for row in rows:
        table.add_row(*map(str, row))
    out.print(table)


def output_place(
    given: Path | None, default: str, kinds: Sequence[str] = (), option: str = "--out"
) -> Path:
    """Where to write, checked before the work: as given, else by default, numbered if taken."""
    path, numbers = given or Path(default), count(2)
    while given is None and path.exists():
        path = path.with_stem(f"{Path(default).stem}-{next(numbers)}")
    if kinds and path.suffix.lower() not in kinds:
        raise ValueError(f"{option} is a {', '.join(kinds)} file; got {path}")
    try:
        whole = path.expanduser()
        folder = next(parent for parent in whole.absolute().parents if parent.exists())
        if whole.is_dir():
            raise IsADirectoryError
        if not is_special(whole):
            with tempfile.TemporaryFile(dir=folder):  # permissions alone do not tell
                pass
    except (OSError, RuntimeError):  # RuntimeError: there is no such user's home
        words = f"{option} {path} cannot be written; name a file in a folder of yours"
        raise ValueError(words) from None
    return path


def new_folder(path: Path) -> Path:
    """The path of a folder to write into, checked to be new or empty."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} is there already and not empty; name another folder")
    return path


def write(out: Console, path: Path, content: Any, about: str = "") -> Path:
    """Write bytes, figures or a picture, whole or not at all; print the name and words about it."""
    path = path.expanduser()
    words = f"replaced {strong(path)}" if path.is_file() else strong(path)
    if isinstance(content, bytes | dict):
        write_bytes(path, content if isinstance(content, bytes) else to_json(content))
    else:
        save_picture(content, path)
    out.print(words + escape(about))
    return path


def to_csv(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """A table with a header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    return text.getvalue().encode()


def to_json(figures: dict[str, Any]) -> bytes:
    """Figures as JSON; what is not a number becomes null."""
    return json.dumps(_plain(figures), indent=1, ensure_ascii=False).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return str(value) if isinstance(value, Path) else value
