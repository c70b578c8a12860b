"""The report: one page that holds everything it shows, from the template beside this file."""

from __future__ import annotations

import base64
import io
import json
import math
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mintnet.analysis.overview import Overview
from mintnet.figures.classification import evaluation_picture
from mintnet.figures.grid import image_grid, paired_grid
from mintnet.figures.plots import draw_error_curves, draw_metrics, series
from mintnet.figures.style import DARK, LIGHT, Draw, render

if TYPE_CHECKING:
    from PIL.Image import Image


def build_page(overview: Overview) -> str:
    """The page as text.

    Examples:
        >>> "<h1>A model</h1>" in build_page(Overview("A model"))
        True
    """
    import mintnet

    page: str = template("report.html.j2").render(
        o=overview,
        grid=lambda images, columns=None: embedded(image_grid(images, overview.levels, columns)),
        pairs=lambda found: embedded(paired_grid(found, overview.levels)),
        png=partial(_data, "png"),
        uniform_bits=math.log2(overview.levels),
        plots=_plots(overview),
        evaluation=_evaluation(overview),
        series=partial(series, overview.metrics, figure=overview.metric[0]),
        configuration=json.dumps(overview.configuration, indent=1, default=str),
        made=f"mintnet {mintnet.__version__} on {date.today():%d %B %Y}",
    )
    return page


def template(name: str) -> Any:
    """A template of this folder."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)


def _plots(overview: Overview) -> dict[str, list[str]]:
    """Each plot twice, for light and for dark paper."""
    draw: dict[str, Draw] = {}
    figure, label = overview.metric
    if any(figure in row for row in overview.metrics):
        draw["training"] = partial(draw_metrics, rows=overview.metrics, figure=figure, label=label)
    if found := overview.verification:
        draw["curves"] = partial(draw_error_curves, curves=found.curves, reached=found.reached)
    return {
        name: [_data("svg+xml", render(plot, theme, (8.0, 4.0))) for theme in (LIGHT, DARK)]
        for name, plot in draw.items()
    }


def _evaluation(o: Overview) -> str:
    """The picture of a classifier's evaluation."""
    if o.accuracy is None or o.images is None:
        return ""
    return _data("png", evaluation_picture(o.accuracy, o.images, o.levels, o.names, ""))


def embedded(picture: Image) -> tuple[str, int, int]:
    """A picture inside the page, with its width and height."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return (_data("png", buffer.getvalue()), *picture.size)


def _data(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
