"""A CSV file becomes a model, new rows, scores and a page; mistakes in it are told by place."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from mintnet import tables
from mintnet.cli.tables import read_table
from mintnet.models import TableModel


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    height = rng.normal(170, 10, 60)
    weight = 0.5 * height + rng.normal(0, 5, 60)
    lines = [f"{a:.3f},{b:.3f}" for a, b in zip(height, weight, strict=True)]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["height,weight", *lines]) + "\n")
    return path


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "PATIENCE", 10)


def test_from_a_table_to_new_rows(mintnet, table: Path) -> None:  # type: ignore[no-untyped-def]
    found = mintnet("train", "people.csv", "--json", "train.json")
    assert found.code == 0 and "60 rows of 2 columns" in found.out and "mintnet sample" in found.out
    assert TableModel.load("runs/people").columns == ["height", "weight"]
    assert json.loads(Path("train.json").read_text())["held_out_nats"] < 0
    found = mintnet("train", "people.csv", "--epochs", "3")
    assert found.code == 2 and "the options for tables: mintnet train people.csv --h" in found.err
    found = mintnet("sample", "runs/people", "-n", "300", "--out", "new.csv")
    assert found.code == 0 and found.out.endswith("Next: mintnet score runs/people new.csv\n")
    with open("new.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 300
    assert np.mean([float(row["height"]) for row in rows]) == pytest.approx(170, abs=5)
    assert mintnet("score", "runs/people", "new.csv", "--out", "scores.csv").code == 0
    scores = Path("scores.csv").read_text().splitlines()
    assert scores[0] == "log_likelihood" and len(scores) == 301
    expected = float(np.mean([float(score) for score in scores[1:]]))
    found = mintnet("evaluate", "runs/people", "new.csv", "--json", "evaluation.json")
    assert found.code == 0 and "300 rows of new.csv" in found.out
    assert json.loads(Path("evaluation.json").read_text())["nats"] == pytest.approx(expected)
    Path("named.csv").write_text("name,weight,height\nAda,80,170\n")  # other columns may be text
    assert "1 rows of named.csv" in mintnet("evaluate", "runs/people", "named.csv").out
    assert "trained on" in mintnet("evaluate", "runs/people").out
    found = mintnet("studio", "runs/people", "--no-browser")
    assert found.code == 1 and "is a table" in found.err
    assert mintnet("report", "runs/people").code == 0
    page = Path("runs/people/report.html").read_text()
    assert "data:image/png" in page
    words = re.sub(r"<[^>]*>", "", page.split("</style>")[1])
    assert "held out" in words and not re.search("image|pixel", words)
    assert "a density model of a table" in mintnet("info", "runs/people").out
    found = mintnet("reconstruct", "runs/people")
    assert found.code == 1 and "for tables" in found.err
    found = mintnet("train", "people.csv")
    assert found.code == 1 and "not empty" in found.err
    Path("other.csv").write_text(table.read_text().replace("weight", "mass"))
    found = mintnet("score", "runs/people", "other.csv")
    assert found.code == 1 and "'weight'" in found.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n3,\n", ("row 3", "'b'", "missing")),
        ("a,b\n1,2\n3,red\n", ("row 3", "'b'", "'red'")),
        ("1,2\n3,nan\n", ("row 2", "'column 2'", "'nan'")),
        ("a;b\n1;2\n3\n", ("row 3", "1 cells", "expected 2")),
        ("a,a\n1,2\n", ("same name",)),
        ("", ("empty",)),
        ("a,b\n" + "1" * 200_000 + ",2\n", ("not a CSV file", "field")),
        ("a,b\n" + "1,2\n" * 3, ("at least 5 rows",)),
        ("a,b\n" + "".join(f"{i},7\n" for i in range(20)), ("constant", "b", "leave")),
    ],
)
def test_tables_with_mistakes(mintnet, text: str, words: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    Path("bad.csv").write_text(text)
    found = mintnet("train", "bad.csv")
    assert found.code == 1 and len(found.err.splitlines()) == 1
    assert all(word in found.err for word in words), found.err
    assert not Path("runs").exists()


def test_what_is_no_table(mintnet, model: Path) -> None:  # type: ignore[no-untyped-def]
    assert "none.csv" in mintnet("train", "none.csv").err
    found = mintnet("sample", str(model), "--out", "new.csv")
    assert found.code == 1 and "models of tables" in found.err
    Path("latin.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    assert "UTF-8" in mintnet("train", "latin.csv").err


def test_a_first_row_of_zeros_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "zeros.csv").write_text("0,0.0\n1,2\n")
    names, rows = read_table(tmp_path / "zeros.csv")
    assert names == ["column 1", "column 2"] and rows.tolist() == [[0, 0], [1, 2]]
