"""A short slice of each campaign: no promise is broken, and reports and failures can be used."""

import json
from pathlib import Path

import pytest

from mintnet.cli.app import benchmarks

campaign = benchmarks("campaign")

SLICES = {"files": 10, "inverse": 40, "kills": 1, "likelihood": 60, "proofs": 150}
"""Cases of each campaign, as far as ten seconds go."""


@pytest.mark.parametrize("name", SLICES)
def test_no_promise_is_broken_in_the_first_cases(name, tmp_path, monkeypatch):
    monkeypatch.setattr(campaign.module("inverse"), "SIZES", (1, 16, 64))
    report = campaign.run_campaign(name, 10.0, 0, tmp_path, SLICES[name])
    failures = [path.read_text() for path in tmp_path.glob("failure-*.json")]
    assert not failures and report["failures"] == 0, failures
    assert 0 < report["cases"] <= SLICES[name]


def test_a_campaign_goes_on_where_it_ended_and_keeps_failures(tmp_path, monkeypatch, capsys):
    broken = campaign.module("inverse")
    seen = []

    def run(case):
        seen.append(case)
        if len(seen) == 2:
            raise ZeroDivisionError("the second")
        return {"solves": 5}, ["off by 3"] if len(seen) == 4 else []

    monkeypatch.setattr(broken, "run", run)
    campaign.run_campaign("inverse", 60.0, 7, tmp_path, 3)
    report = campaign.run_campaign("inverse", 60.0, 7, tmp_path, 5)
    assert (report["cases"], report["failures"], report["counts"]) == (5, 2, {"solves": 20})
    assert len({json.dumps(case) for case in seen}) == 5
    saved = {int(path.stem.split("-")[1]): path for path in tmp_path.glob("failure-*.json")}
    assert sorted(saved) == [1, 3]
    assert "the second" in saved[1].read_text() and "off by 3" in saved[3].read_text()
    assert campaign.main(["inverse", "--replay", str(saved[3])]) == 0  # the fourth alone was wrong
    assert seen[-1] == seen[3] and '"solves": 5' in capsys.readouterr().out


def test_a_campaign_that_cannot_run_here_says_so_in_a_line(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert campaign.main(["gpu"]) == 1
    assert capsys.readouterr().out.count("\n") == 1
    assert Path("campaigns").exists() is False
