"""The few pieces of HTML that the report is made of. Everything is inside the page itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from mintnet.figures.style import DARK, LIGHT, Draw, render

if TYPE_CHECKING:
    from PIL.Image import Image

STYLE = """
:root { color-scheme: light dark; --paper: #f4f6f8; --card: #ffffff; --ink: #1d2733;
  --quiet: #5b6875; --line: #e0e5ea; --accent: #0b7a75; --good: #1b7f4b; --bad: #b3341f; }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1418; --card: #161c22; --ink: #e6ebf0;
  --quiet: #9aa7b4; --line: #2b343d; --accent: #3fc7bd; --good: #58c98b; --bad: #f0816b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2.5rem 1rem 3rem; }
h1 { font-size: clamp(1.7rem, 5vw, 2.4rem); line-height: 1.15; margin: 0; letter-spacing: -.02em; }
h2 { font-size: 1.25rem; margin: 0 0 .35rem; letter-spacing: -.01em; }
h3 { font-size: 1rem; margin: 1.4rem 0 .35rem; }
p { margin: .35rem 0 .9rem; max-width: 46rem; } .quiet { color: var(--quiet); }
code { font: .88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { overflow-x: auto; margin: .6rem 0 0; padding: .8rem 1rem; background: var(--paper);
  border-radius: .5rem; font: .8rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .8rem;
  padding: 1.2rem 1.3rem 1.3rem; margin-top: 1.1rem; }
.headline { display: grid; gap: .8rem; margin: 1.6rem 0 1.1rem; padding: 0; list-style: none;
  grid-template-columns: repeat(auto-fit, minmax(11.5rem, 1fr)); }
.headline li { background: var(--card); border: 1px solid var(--line); border-radius: .8rem;
  padding: .9rem 1.1rem; }
.headline b { display: block; font-size: 1.75rem; line-height: 1.2; letter-spacing: -.02em;
  color: var(--accent); font-weight: 650; }
.headline b.bad { color: var(--bad); } .headline span { display: block; font-size: .9rem; }
.headline small { display: block; color: var(--quiet); font-size: .8rem; line-height: 1.4; }
img { display: block; max-width: 100%; height: auto; }
img.pixels { image-rendering: pixelated; width: 100%; border-radius: .3rem; }
.two { display: grid; gap: 1.1rem; margin-top: 1.1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.two section { margin-top: 0; display: flex; flex-direction: column; }
.two section img { margin-top: auto; }
.plot img { width: 100%; } .strip { display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); }
.strip img { width: 100%; } figure { margin: 0; }
figcaption { color: var(--quiet); font-size: .8rem; margin-top: .3rem; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: .88rem; width: 100%; }
th, td { text-align: left; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; white-space: nowrap; } th { color: var(--quiet); font-weight: 550; }
td.wide { white-space: normal; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
summary { cursor: pointer; color: var(--accent); margin-top: .9rem; } .bad { color: var(--bad); }
footer { color: var(--quiet); font-size: .82rem; margin-top: 1.6rem; }
"""


def page(title: str, body: str) -> str:
    """A whole page.

    Examples:
        >>> page("A title", "<p>Text</p>").splitlines()[0]
        '<!doctype html>'
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A card with a heading."""
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def side_by_side(*sections: str) -> str:
    """Sections next to one another, where there is room."""
    shown = [section for section in sections if section]
    return f'<div class="two">{"".join(shown)}</div>' if len(shown) > 1 else "".join(shown)


def text(words: str, quiet: bool = False, bad: bool = False) -> str:
    """A paragraph of plain words.

    Examples:
        >>> text("a < b")
        '<p>a &lt; b</p>'
    """
    kind = ' class="bad"' if bad else ' class="quiet"' if quiet else ""
    return f"<p{kind}>{escape(words)}</p>"


def plot(draw: Draw, alt: str, size: tuple[float, float] = (8.0, 4.0)) -> str:
    """A plot that follows the reader's choice of light or dark."""
    light, dark = (_data("svg+xml", render(draw, theme, size)) for theme in (LIGHT, DARK))
    return (
        '<picture class="plot">'
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(alt)}"></picture>'
    )


def pixels(picture: Image, alt: str) -> str:
    """A picture whose pixels stay sharp when it is enlarged."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    width, height = picture.size
    return (
        f'<img class="pixels" src="{_data("png", buffer.getvalue())}" width="{width}" '
        f'height="{height}" alt="{escape(alt)}">'
    )


def photograph(png: bytes, alt: str) -> str:
    """A PNG file as wide as the page."""
    return f'<img src="{_data("png", png)}" alt="{escape(alt)}">'


def strip(pictures: Sequence[tuple[bytes, str]]) -> str:
    """PNG files side by side, each with its caption."""
    figures = (
        f'<figure><img class="pixels" src="{_data("png", data)}" alt="{escape(caption)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for data, caption in pictures
    )
    return f'<div class="strip">{"".join(figures)}</div>'


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table whose first ``words`` columns hold words, and the others numbers.

    Examples:
        >>> table(["x", "y"], [["a", "1"]]).count("number")
        2
    """

    def row(cells: Sequence[str], tag: str) -> str:
        kinds = ["" if k < words else ' class="number"' for k in range(len(cells))]
        inside = "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True)
        )
        return f"<tr>{inside}</tr>"

    head = f"<thead>{row(headers, 'th')}</thead>"
    body = "".join(row(cells, "td") for cells in rows)
    return f'<div class="table"><table>{head}<tbody>{body}</tbody></table></div>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names with what they stand for, as a table without a head."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="wide">{escape(value)}</td></tr>'
        for name, value in pairs
    )
    return f'<div class="table"><table><tbody>{rows}</tbody></table></div>'


def details(summary: str, inside: str) -> str:
    """Something to unfold."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def _data(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
