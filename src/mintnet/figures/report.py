"""Pages that hold everything they show, from the templates beside this file, and their plots."""

import base64
import io
import json
import math
from collections.abc import Iterable, Sequence
from datetime import date
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mintnet.analysis.overview import Overview
from mintnet.analysis.reconstruction import ErrorCurve, Reconstruction
from mintnet.figures.classification import evaluation_picture
from mintnet.figures.style import DARK, LIGHT, Theme, render
from mintnet.models.pictures import image_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL.Image import Image

WARM, STRONGEST = (230, 60, 20), 6.0  # the colour of what is unusual, full at so many deviations
Shown = tuple[dict[str, Any], Tensor, Tensor | None]
"""Facts about a picture, the picture (C, H, W) uint8, and its standardised map (H, W)."""


def build_page(o: Overview) -> str:
    """The report of a model as text."""
    import mintnet

    evaluation, draw = "", dict[str, Any]()
    if o.accuracy is not None and o.images is not None:
        evaluation = _data("png", evaluation_picture(o.accuracy, o.images, o.levels, o.names, ""))
    figure, label = o.metric
    if any(figure in row for row in o.metrics):
        draw["training"] = partial(draw_metrics, rows=o.metrics, figure=figure, label=label)
    if found := o.verification:
        draw["curves"] = partial(draw_error_curves, curves=found.curves, reached=found.reached)
    return _page(
        "report.html.j2",
        o=o,
        grid=lambda images, columns=None: _embedded(image_grid(images, o.levels, columns)),
        pairs=lambda found: _embedded(paired_grid(found, o.levels)),
        png=partial(_data, "png"),
        uniform_bits=math.log2(o.levels),
        plots={  # for light and for dark paper
            name: [_data("svg+xml", render(plot, theme, (8.0, 4.0))) for theme in (LIGHT, DARK)]
            for name, plot in draw.items()
        },
        evaluation=evaluation,
        series=partial(series, o.metrics, figure=figure),
        configuration=json.dumps(o.configuration, indent=1, default=str),
        made=f"mintnet {mintnet.__version__} on {date.today():%d %B %Y}",
    )


def series(
    rows: Sequence[dict[str, Any]], kind: str, figure: str = "bpd"
) -> tuple[list[float], list[float]]:
    """Steps and values of one figure of a run's metrics, where it is a finite number."""
    known = [r for r in rows if r.get("kind") == kind and isinstance(r.get(figure), int | float)]
    known = [row for row in known if math.isfinite(row[figure])]
    return [float(row["step"]) for row in known], [float(row[figure]) for row in known]


def draw_metrics(
    axes: "Axes",
    theme: Theme,
    rows: Sequence[dict[str, Any]],
    figure: str = "bpd",
    label: str = "bits per dimension",
) -> None:
    """Draw a figure in training and on held-out images; the first steep fall is cut off."""
    shown: list[float] = []
    kinds = (("train", "training"), ("validation", "held-out images"))
    for (kind, name), colour in zip(kinds, theme.colours, strict=False):
        steps, values = series(rows, kind, figure)
        if steps:
            style = "-" if kind == "train" or len(steps) > 40 else "o-"
            axes.plot(steps, values, style, color=colour, label=name, markersize=4)
            shown += values[len(values) // 20 :]
    if shown:
        room = 0.06 * (max(shown) - min(shown)) or 0.1
        axes.set_ylim(min(shown) - room, max(shown) + room)
        axes.legend()
    axes.set_xlim(left=0)
    axes.set(xlabel="step", ylabel=label)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")


def draw_error_curves(
    axes: "Axes", theme: Theme, curves: Sequence[ErrorCurve], reached: tuple[str, float]
) -> None:
    """Draw each curve with its band on logarithmic axes, and what another solver reached."""
    for curve, colour in zip(curves, cycle(theme.colours), strict=False):
        centre, spread = torch.tensor(curve.centre), torch.tensor(curve.spread)
        band = (centre / spread, centre * spread)
        axes.fill_between(curve.iterations, *band, color=colour, alpha=0.2, linewidth=0)
        axes.plot(curve.iterations, centre, "o-", color=colour, markersize=4, label=curve.label)
    axes.axhline(reached[1], color=theme.quiet, linestyle="--", label=reached[0])
    ticks = curves[0].iterations
    axes.set_xscale("log" if min(ticks) > 0 else "symlog")
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.set_xticks([], minor=True)
    axes.set(yscale="log", ylabel="reconstruction error ‖x − y‖² / D")
    axes.set_xlabel("steps of Algorithm 1 in each layer")
    axes.legend()


def paired_grid(found: Reconstruction, levels: int, most: int = 48) -> "Image":
    """Whole rows of originals, each above the row of their reconstructions (Fig. 4b)."""
    columns = min(16, len(found.originals), most)
    shown = min(most, len(found.originals)) // columns * columns
    pairs = torch.stack([found.originals[:shown], found.images[:shown]])
    rows = [row for part in pairs.split(columns, dim=1) for row in part]
    return image_grid(torch.cat(rows), levels, columns, width=800, paired=True)


def score_page(title: str, words: str, shown: Iterable[Shown], levels: int) -> str:
    """The page of `mintnet score` as text: pictures with their maps as overlays, as given."""
    cards = []
    for facts, image, unusual in shown:
        maps = [] if unusual is None else [overlay(image, unusual, levels)]
        pair = torch.stack([image.expand(3, -1, -1), *maps])
        cards.append((facts, _embedded(image_grid(pair, levels, len(pair), width=320))))
    return _page("score.html.j2", title=title, words=words, cards=cards)


def overlay(image: Tensor, unusual: Tensor, levels: int) -> Tensor:
    """A dimmed grey picture with warm colour where nats are above the usual, (3, H, W) uint8."""
    grey = 0.6 * image.double().mean(0).expand(3, -1, -1)
    colour = torch.tensor(WARM).double()[:, None, None] * ((levels - 1) / 255)
    share = ((unusual - 1.0) / (STRONGEST - 1.0)).clamp(0, 1)
    return torch.lerp(grey, colour.expand_as(grey), share.double()).round().to(torch.uint8)


def _page(name: str, **content: Any) -> str:
    """A template of this folder, filled."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options: Any = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    environment = jinja2.Environment(loader=loader, autoescape=True, **options)
    return environment.get_template(name).render(**content)


def _embedded(picture: "Image") -> tuple[str, int, int]:
    """A picture inside the page, with its width and height."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return (_data("png", buffer.getvalue()), *picture.size)


def _data(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
