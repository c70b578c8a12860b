"""One look for every plot, on light and on dark paper."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Theme(NamedTuple):
    """Colours of a plot."""

    paper: str  # behind the plot
    ink: str  # text
    quiet: str  # axes and secondary text
    grid: str  # lines behind the data
    colours: tuple[str, ...]  # of the data, in order


LIGHT = Theme(
    "#ffffff", "#1d2733", "#5b6875", "#e4e8ec", ("#0b7a75", "#c2571a", "#6a4fb3", "#7a8794")
)
DARK = Theme(
    "#161c22", "#e6ebf0", "#9aa7b4", "#2b343d", ("#3fc7bd", "#f0944d", "#a993ee", "#93a0ad")
)
STYLE = Path(__file__).with_name("mintnet.mplstyle")  # what does not depend on the paper


@contextmanager
def styled_figure(theme: Theme, size: tuple[float, float]) -> Iterator["Figure"]:
    """A figure of that size in inches, in this look, to be drawn on and saved inside the block."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    quiet = ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    ink = ("axes.titlecolor", "text.color", "legend.labelcolor")
    colours: dict[Any, Any] = {"grid.color": theme.grid, "savefig.facecolor": theme.paper}
    colours |= dict.fromkeys(quiet, theme.quiet) | dict.fromkeys(ink, theme.ink)
    with matplotlib.rc_context(colours, STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)  # no window, whatever the user's own settings say
        yield figure


def saved(figure: "Figure", kind: str = "png", dpi: int = 110, **options: Any) -> bytes:
    """The bytes of a figure's file, the same for the same data."""
    buffer, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else None
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata, **options)
    return buffer.getvalue()


def render(
    draw: Callable[[Any, Theme], None],
    theme: Theme = LIGHT,
    size: tuple[float, float] = (7.0, 3.8),
    kind: str = "svg",
) -> bytes:
    """A plot as the bytes of an ``svg``, ``png`` or ``pdf`` file of that size in inches."""
    with styled_figure(theme, size) as figure:
        draw(figure.add_subplot(), theme)
        return saved(figure, kind, dpi=160)
