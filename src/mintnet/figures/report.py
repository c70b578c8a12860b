"""The report: one page that holds everything it shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mintnet
from mintnet.figures import html
from mintnet.figures.curves import draw_curves, series
from mintnet.figures.invertibility import ErrorCurve, draw_error_curves
from mintnet.figures.layers import LayerRow
from mintnet.files import write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Headline:
    """A figure that stands at the top of the page.

    Attributes:
        value: the figure itself.
        label: what it is.
        note: a line below it.
        good: whether it is as it should be.
    """

    value: str
    label: str
    note: str = ""
    good: bool = True


@dataclass(frozen=True)
class Panel:
    """A picture with what there is to say about it; or only that, where there is no picture."""

    picture: Image | None
    note: str
    good: bool = True


@dataclass(frozen=True)
class Photograph:
    """A picture that is a PNG file already, with a heading and a note."""

    title: str
    png: bytes
    note: str


@dataclass
class Contents:
    """What a report shows; whatever is empty is left out.

    Attributes:
        title: of the page.
        subtitle: a line below it.
        headlines: the figures at the top.
        metrics: rows of the run's metrics, see `read_metrics`.
        figure: which of the metrics is drawn, and what it is called.
        photographs: pictures that are files already, one after another.
        progress: grids of samples drawn during the run, as (PNG file, caption).
        samples: new images.
        reconstructions: Fig. 4b.
        interpolation: Appendix C.
        curves: Fig. 4a.
        layers: how each layer was inverted.
        layers_note: what the table of layers says, in words.
        facts: names and values of the configuration.
        configuration: all of it, as plain data.
        bits_per_dim: on test images, if it was measured.
    """

    title: str
    subtitle: str = ""
    headlines: list[Headline] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    figure: tuple[str, str] = ("bpd", "bits per dimension")
    photographs: list[Photograph] = field(default_factory=list)
    progress: list[tuple[bytes, str]] = field(default_factory=list)
    samples: Panel | None = None
    reconstructions: Panel | None = None
    interpolation: Panel | None = None
    curves: list[ErrorCurve] = field(default_factory=list)
    layers: list[LayerRow] = field(default_factory=list)
    layers_note: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    bits_per_dim: float | None = None


def write_report(path: str | Path, contents: Contents) -> Path:
    """Write the page, whole or not at all.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = write_report(f"{folder}/report.html", Contents("A model"))
        ...     "<h1>A model</h1>" in written.read_text()
        True
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected the name of a file for the report")
    write_bytes(path, build_page(contents).encode())
    return path


def build_page(contents: Contents) -> str:
    """The page as text."""
    parts = [
        f"<header><h1>{escape(contents.title)}</h1>",
        html.text(contents.subtitle, quiet=True) if contents.subtitle else "",
        "</header>",
        _headlines(contents.headlines),
        html.side_by_side(
            _panel("Samples", contents.samples, "New images drawn from the model"),
            _panel(
                "Interpolation",
                contents.interpolation,
                "Eight by eight images that change gradually between the four in the corners",
            ),
        ),
        *(_photograph(photograph) for photograph in contents.photographs),
        _training(contents),
        _panel(
            "Reconstructions",
            contents.reconstructions,
            "Rows of test images, each above its reconstruction",
        ),
        _invertibility(contents),
        _configuration(contents),
        f"<footer>Made by mintnet {mintnet.__version__} on {date.today():%d %B %Y}.</footer>",
    ]
    return html.page(contents.title, "\n".join(part for part in parts if part))


def _headlines(headlines: Sequence[Headline]) -> str:
    items = (
        f"<li><b class={'good' if item.good else 'bad'}>{escape(item.value)}</b>"
        f"<span>{escape(item.label)}</span><small>{escape(item.note)}</small></li>"
        for item in headlines
    )
    return f'<ul class="headline">{"".join(items)}</ul>' if headlines else ""


def _panel(title: str, panel: Panel | None, alt: str) -> str:
    if panel is None:
        return ""
    picture = html.pixels(panel.picture, alt) if panel.picture else ""
    return html.section(title, html.text(panel.note, quiet=panel.good, bad=not panel.good), picture)


def _photograph(photograph: Photograph) -> str:
    return html.section(
        photograph.title,
        html.text(photograph.note, quiet=True),
        html.photograph(photograph.png, photograph.note),
    )


def _training(contents: Contents) -> str:
    figure, label = contents.figure
    steps, values = series(contents.metrics, "train", figure)
    held_steps, held = series(contents.metrics, "validation", figure)
    if not steps and not held:
        return ""
    lines = [name for name, found in (("training", values), ("held-out", held)) if found]
    best = (
        f", at best {min(held):.3f} at step {held_steps[held.index(min(held))]:,.0f}"
        if held
        else ""
    )
    words = (
        f"{label.capitalize()} on {' and '.join(lines)} images over "
        f"{max([*steps, *held_steps]):,.0f} steps; the last are "
        f"{' and '.join(f'{v[-1]:.3f}' for v in (values, held) if v)}{best}."
    )
    parts = [
        html.text(words, quiet=True),
        html.plot(
            partial(draw_curves, rows=contents.metrics, figure=figure, label=label),
            f"A plot. {words}",
        ),
    ]
    if contents.progress:
        parts += [
            "<h3>The same draws as training went on</h3>",
            html.strip(contents.progress),
        ]
    return html.section("Training", *parts)


def _invertibility(contents: Contents) -> str:
    parts = []
    if contents.curves:
        first = contents.curves[0]
        ends = "; ".join(
            f"α = {'1' if c.step == 1 else f'1/{1 / c.step:.4g}'}: {c.centre[-1]:.1e} after "
            f"{c.iterations[-1]} iterations"
            for c in contents.curves
        )
        words = (
            f"Reconstruction error ‖x − y‖² / D of {first.errors.shape[1]} images, pixels in "
            "[0, 1], when every layer is inverted with that many iterations of Algorithm 1 and "
            "nothing else: exponential of the mean log error, with a band of the exponential of "
            f"its standard deviation. {ends}."
        )
        parts += [
            html.text(words, quiet=True),
            html.plot(partial(draw_error_curves, curves=contents.curves), f"A plot. {words}"),
        ]
    if contents.layers:
        headers = ["layer", "what it is", "steps (median)", "most", "worst residual", "failures"]
        rows = [
            [
                str(row.number),
                row.name,
                f"{row.median_steps:g}",
                str(row.most_steps),
                f"{row.residual:.1e}",
                str(row.failures),
            ]
            for row in contents.layers
        ]
        parts += [
            "<h3>Layer by layer, with the default solver</h3>",
            html.text(contents.layers_note, quiet=True) if contents.layers_note else "",
            html.details(f"All {len(rows)} layers", html.table(headers, rows, words=2)),
        ]
    return html.section("Invertibility", *parts) if parts else ""


def _configuration(contents: Contents) -> str:
    parts = [html.facts(contents.facts)] if contents.facts else []
    if contents.configuration:
        raw = escape(json.dumps(contents.configuration, indent=1, default=str))
        parts.append(html.details("Everything, as saved", f"<pre>{raw}</pre>"))
    return html.section("Configuration", *parts) if parts else ""
