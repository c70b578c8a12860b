"""The pages say what is so: their examples run, and their numbers are those of the code."""

import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mintnet.cli.app import parse
from mintnet.cli.command import Command

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted(DOCS.glob("*.md"))]
SIZE_LIMITS = {".svg": 100_000, ".png": 250_000}
GONE = r"certificate|certified|recorded|in turn|watched|on the chip|Recorder"


def blocks_of(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def figures() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("draw_figures")


@pytest.mark.parametrize("page", [*filter(blocks_of, PAGES)], ids=lambda page: page.name)
def test_examples_print_what_the_page_says(page: Path, monkeypatch, tmp_path, request) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    if "import zuko" in text:
        request.getfixturevalue("zuko")  # which changes torch's distributions
    names: dict[str, object] = {"__name__": "example"}
    for number, block in enumerate(blocks_of(page), 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, f"{page.name}, block {number}", "exec"), names)
        for line in printed.getvalue().splitlines():
            assert line in text, f"block {number} printed {line!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_the_page_can_be_parsed(page: Path) -> None:
    text = re.sub(r"^```python.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^    (?:srun \S+ )?(mintnet [a-z].*)$", text, flags=re.MULTILINE)
    quoted = re.findall(r"`(mintnet [a-z][^`]* [^`]*)`", text)
    lines += [" ".join(found.split()) for found in quoted]
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if not re.search(r"[|\[…]| COMMAND", line) and "--help" not in words:
            command = parse([word.replace("DIR", "folder") for word in words])
            assert isinstance(command, Command), line


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_pictures_links_and_results_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in name:
            assert (page.parent / name).exists(), name
    for name in re.findall(r"`(results/[^`]+)`", text):
        assert list(ROOT.glob(name)), name
    for name in re.findall(r"`((?:tests|benchmarks)/[^`]+)`", text):
        assert (ROOT / name).exists(), name
    assert not re.search(GONE, text, flags=re.IGNORECASE), "a word that is no longer used"


def test_architecture_names_files_and_things_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)?[a-z_0-9]+\.py)`(?: \| |, )`(?!\w+\.py)([\w.]+)`", text)
    assert len(named) >= 25
    for file, name in named:
        module = importlib.import_module("mintnet." + file.removesuffix(".py").replace("/", "."))
        found: object = module
        for part in name.split("."):
            found = getattr(found, part)
    for walk in text.split("\n## ")[3:6]:
        assert 3 <= len(re.findall(r"^\d\. ", walk, flags=re.MULTILINE)) <= 6


def test_the_reference_has_every_public_name() -> None:
    """Pages are made of `__all__`, whose names all have a docstring."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for name in ("mintnet", "mintnet.calculus", "mintnet.training", "mintnet.analysis"):
        assert f"::: {name}\n" in page
    for name in ("mintnet", "mintnet.calculus"):
        module = importlib.import_module(name)
        for public in module.__all__:
            thing = getattr(module, public)
            assert not callable(thing) or thing.__doc__, f"{name}.{public} has no docstring"


def test_pictures_are_small() -> None:
    for path in (DOCS / "figures").iterdir():
        assert path.stat().st_size < SIZE_LIMITS.get(path.suffix, 0), path.name


@pytest.mark.slow
def test_the_script_draws_every_picture(figures: ModuleType, tmp_path: Path, capsys) -> None:
    figures.main(["--fast", "--out", str(tmp_path)])
    for page in ("ideas.md", "solvers.md"):
        for name in re.findall(r"\(figures/(.+?)\)", (DOCS / page).read_text(encoding="utf-8")):
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
    """Of a trained network: two layers that α = 1 does not solve, and an entry that oscillates."""
    layers = figures.targets(8)
    assert "layer 8: 8 of 8 samples never" in figures.steps(layers, 120).facts
    assert "46.25 and 73.30; the root is 62.76" in figures.cycle(layers, 120).facts[0]
