"""The report is one page that needs nothing else."""

import base64
import re
from html.parser import HTMLParser

import pytest

from mintnet.analysis import Headline, Overview, overview
from mintnet.data import ImageData
from mintnet.figures.report import build_page
from mintnet.solvers import FixedPoint


@pytest.fixture(scope="module")
def page(flow, images, tmp_path_factory) -> str:
    run = tmp_path_factory.mktemp("run")
    (run / "metrics.jsonl").write_text(
        '{"kind": "train", "step": 1, "bpd": 3.0}\n{"kind": "validation", "step": 2, "bpd": 2.5}\n'
    )
    found = overview(flow, ImageData("digits", images, levels=17), "A <title>", run, samples=4)
    found.configuration = {"data": "from somewhere"}
    return build_page(found)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_self_contained(page):
    assert not re.search(r"https?://|//[a-z]+\.", page)
    assert "<script" not in page and "@import" not in page and "url(" not in page
    for tag, attributes in Tags(page).found:
        for name in ("src", "srcset", "href"):
            if name in attributes:
                assert attributes[name].startswith("data:"), (tag, name)


def test_well_formed_and_accessible(page):
    tags = Tags(page)
    assert tags.open == []
    assert all(attributes.get("alt") for tag, attributes in tags.found if tag == "img")
    assert sum(tag == "h1" for tag, _ in tags.found) == 1
    assert ("html", {"lang": "en"}) in tags.found
    assert "A &lt;title&gt;" in page


def test_fig_4a_has_the_line_of_auto(page):
    assert "auto: 8 of 8 verified" in page
    plots = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', page)
    assert any(b"stroke-dasharray" in base64.b64decode(plot) for plot in plots)


def test_an_inversion_that_fails_is_told(flow, images):
    data = ImageData("digits", images, levels=17)
    found = overview(flow, data, "t", samples=2, solver=FixedPoint(max_steps=0))
    text = build_page(found)
    assert "could not be verified" in text and "Not drawn" in text and 'class="bad"' in text
    assert "FixedPoint: 0 of 8 verified" in text and not all(h.good for h in found.headlines)


def test_empty_parts_are_left_out():
    found = Overview("t", headlines=[Headline("1", "one")], gallery=[("Best", "note", b"png")])
    text = build_page(found)
    assert "<h2>Best</h2>" in text
    for words in ("Samples", "Invertibility", "Training", "Configuration"):
        assert f"<h2>{words}</h2>" not in text
