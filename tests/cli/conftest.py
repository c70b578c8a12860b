"""A tiny model on disk, and the command line without a process of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import registry
from mintnet.cli import main
from mintnet.models import Flow


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def tiny_flow() -> Flow:
    return registry.tiny_flow(side=8, seed=3)


@pytest.fixture(scope="session")
def model(tiny_flow: Flow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model of digits; leave it as it is."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_flow.save(folder, preset="digits", data={"name": "digits"})
    return folder


@pytest.fixture
def mintnet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """`mintnet ARGUMENTS` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MINTNET_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def fails(mintnet: Callable[..., Outcome]) -> Callable[..., str]:
    """A command that must end with one line that has these words in it; gives that line back."""

    def check(arguments: list[object], *words: object) -> str:
        code, _, err = mintnet(*arguments)
        lines = err.strip().splitlines()
        assert code == 1, err
        assert len(lines) == 1 and lines[0].startswith("mintnet: error: "), err
        for word in words:
            assert str(word) in lines[0], f"{word!r} not in: {lines[0]}"
        return lines[0]

    return check
