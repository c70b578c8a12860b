"""The report is one page that needs nothing else."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mintnet.analysis import Headline, Overview, overview
from mintnet.data import ImageData
from mintnet.figures import write_report
from mintnet.solvers import FixedPoint


@pytest.fixture(scope="module")
def page(flow, images, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    run = folder / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text(
        '{"kind": "train", "step": 1, "bpd": 3.0}\n{"kind": "validation", "step": 2, "bpd": 2.5}\n'
    )
    data = ImageData("digits", images, levels=17)
    found = overview(flow, data, "A <title>", run, samples=4)
    found.configuration = {"data": "from somewhere"}
    return write_report(folder / "report.html", found)


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
    text = page.read_text()
    assert not re.search(r"https?://|//[a-z]+\.", text)
    assert "<script" not in text and "@import" not in text and "url(" not in text
    for tag, attributes in Tags(text).found:
        for name in ("src", "srcset", "href"):
            if name in attributes:
                assert attributes[name].startswith("data:"), (tag, name)


def test_well_formed_and_accessible(page):
    tags = Tags(page.read_text())
    assert tags.open == []
    assert all(attributes.get("alt") for tag, attributes in tags.found if tag == "img")
    assert sum(tag == "h1" for tag, _ in tags.found) == 1
    assert ("html", {"lang": "en"}) in tags.found
    assert "A &lt;title&gt;" in page.read_text()


def test_fig_4a_has_the_line_of_auto(page):
    text = page.read_text()
    assert "auto: 8 of 8 verified" in text
    plots = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', text)
    assert any(b"stroke-dasharray" in base64.b64decode(plot) for plot in plots)


def test_an_inversion_that_fails_is_told(flow, images, tmp_path):
    data = ImageData("digits", images, levels=17)
    found = overview(flow, data, "t", samples=2, solver=FixedPoint(max_steps=0))
    text = write_report(tmp_path / "r.html", found).read_text()
    assert "could not be verified" in text and "Not drawn" in text and 'class="bad"' in text


def test_empty_parts_are_left_out(tmp_path):
    found = Overview("t", headlines=[Headline("1", "one")], gallery=[("Best", "note", b"png")])
    text = write_report(tmp_path / "r.html", found).read_text()
    assert "<h2>Best</h2>" in text
    for words in ("Samples", "Invertibility", "Training", "Configuration"):
        assert f"<h2>{words}</h2>" not in text
