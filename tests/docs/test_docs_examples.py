"""The pages say what is so: their examples run, and their numbers are those of the code."""

import contextlib
import importlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("index.md", "ideas.md", "solvers.md", "distributions.md", "classification.md", "field.md")
SIZE_LIMITS = {".svg": 100_000, ".png": 250_000}


@pytest.fixture(scope="module")
def figures() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("draw_figures")


@pytest.mark.parametrize("page", PAGES)
def test_examples_run_and_print_what_the_page_says(page: str, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, object] = {"__name__": "example"}
    for number, block in enumerate(blocks, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, f"{page}, block {number}", "exec"), names)
        for line in printed.getvalue().splitlines():
            assert line in text, f"block {number} printed {line!r}"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))], ids=str
)
def test_pictures_links_and_results_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in name:
            assert (page.parent / name).exists(), name
    for name in re.findall(r"`(results/[^`]+)`", text):
        assert list(ROOT.glob(name)), name


def test_pictures_are_small() -> None:
    for path in (DOCS / "figures").iterdir():
        assert path.stat().st_size < SIZE_LIMITS.get(path.suffix, 0), path.name


@pytest.mark.slow
def test_the_script_draws_every_picture(figures: ModuleType, tmp_path: Path, capsys) -> None:
    figures.main(["--fast", "--out", str(tmp_path)])
    for page in ("ideas.md", "solvers.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        for name in re.findall(r"\(figures/(.+?)\)", text):
            assert (tmp_path / name).is_file(), name
    assert all(path.read_bytes().startswith(b"<?xml") for path in tmp_path.iterdir())
    assert "diag J > 0" in capsys.readouterr().out


def test_one_picture_by_its_name(figures: ModuleType, tmp_path: Path, capsys) -> None:
    figures.main(["levels", "--kind", "png", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["levels.png"]
    with pytest.raises(SystemExit):
        figures.main(["level", "--out", str(tmp_path)])
    assert "choose from masks" in capsys.readouterr().err


def test_members_are_where_the_page_puts_them(figures: ModuleType) -> None:
    page = (DOCS / "ideas.md").read_text(encoding="utf-8")
    members = importlib.import_module("figures_src.members").members()
    for member in members:
        assert member.row() in page
    places = [member.place() for member in members]
    assert places == ["F", "M", "det", "positive", "positive", "one", "I", "I"]


def test_numbers_of_the_ideas(figures: ModuleType) -> None:
    """Whole numbers and rows of the table of Theorem 2, as they are printed."""
    page = (DOCS / "ideas.md").read_text(encoding="utf-8")
    for fact in figures.blind_spot().facts:
        for number in re.findall(r"\d+", fact.split(":")[1]):
            assert re.search(rf"\b{number}\b", page), fact
    rows = [fact for fact in figures.theorem2().facts if fact.startswith("|")]
    assert len(rows) == len(importlib.import_module("figures_src.theorem2").STEPS)
    for row in rows:
        assert row in page


@pytest.mark.slow
def test_numbers_of_the_solvers(figures: ModuleType) -> None:
    """Steps of the trained layers; another processor may round to one more or less."""
    page = (DOCS / "solvers.md").read_text(encoding="utf-8")
    layers = figures.targets(8)
    alphas = list(importlib.import_module("figures_src.residuals").ALPHAS)
    for fact in figures.residuals(layers, 120).facts:
        layer, alpha, rest = re.match(r"layer (\d+), α = (\S+): (.*)", fact).groups()
        cells = re.search(rf"^\| layer {layer} .*$", page, flags=re.MULTILINE).group().split("|")
        quoted = cells[2 + alphas.index(alpha)].strip()
        if quoted.isdigit():
            assert abs(int(re.search(r"after (\d+)", rest).group(1)) - int(quoted)) <= 1
        else:
            assert "not below" in rest
    assert "layer 8: 8 of 8 samples never" in figures.steps(layers, 120).facts
    assert "46.25 and 73.30; the root is 62.76" in figures.cycle(layers, 120).facts[0]
