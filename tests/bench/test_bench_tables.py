"""The comparison on small tables runs and says who is ahead."""

import pytest

pytest.importorskip("sklearn")

from mintnet.cli.app import benchmarks

tables = benchmarks("tables")


def test_tables_are_those_of_the_page() -> None:
    assert {name: rows.shape for name, rows in tables.tables(0).items()} == {
        "two moons": (2000, 2),
        "wine": (178, 13),
        "breast cancer": (569, 30),
        "diabetes": (442, 9),
        "digits": (1797, 64),
    }


def test_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.METHODS, "FlowDensity", lambda *_: 5.0)
    said: list[str] = []
    rows = tables.compare([0, 1], ["wine"], ["FlowDensity", "KernelDensity"], said.append)
    assert len(rows) == 2 and len(said) == 4
    (mean,) = tables.summary(rows)
    assert mean["splits"] == 2 and mean["ahead"] == "FlowDensity" and mean["FlowDensity"] == 5.0
    assert -25 < mean["KernelDensity"] < -10
