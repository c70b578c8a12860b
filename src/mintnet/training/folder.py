"""The run folder: what lies in it, and whether a run may begin or go on there."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mintnet.files import write_bytes
from mintnet.training.checkpoint import Checkpoint
from mintnet.training.files import RunError

FORMAT = 1


@dataclass(frozen=True)
class RunFolder:
    """A folder with one run.

    .. code-block:: text

        run.json           preset, recipe, seed, data, network, versions
        metrics.jsonl      one line for each report, each validation and each step left out
        checkpoint.pt      the state to resume from
        last/, best/       saved models: the newest weights, and the best on held-out images
        samples/           grids of samples, one for each time they were drawn
        tensorboard/       the curves once more

    Examples:
        >>> RunFolder(Path("runs/digits")).checkpoint.as_posix()
        'runs/digits/checkpoint.pt'
    """

    path: Path

    @property
    def configuration(self) -> Path:
        return self.path / "run.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def last(self) -> Path:
        return self.path / "last"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    def is_empty(self) -> bool:
        """Whether there is nothing in it but hidden files, or no folder at all."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; --run names a folder")
        if not self.path.exists():
            return True
        return all(file.name.startswith(".") for file in self.path.iterdir())

    def require_empty(self) -> None:
        """Raise unless a new run may begin here."""
        if self.is_empty():
            return
        if self.configuration.is_file():
            raise RunError(
                f"{self.path} holds a run; go on with it with --resume, or name another folder "
                f"with --run"
            )
        raise RunError(f"{self.path} is not empty; name another folder with --run")

    def read_configuration(self) -> dict[str, Any]:
        """What ``run.json`` says."""
        path = self.configuration
        if not path.is_file():
            raise RunError(
                f"{self.path} holds no run: there is no {path.name} in it; name another folder "
                f"with --run"
            )
        try:
            content = json.loads(path.read_text())
            if content["format"] != FORMAT:
                raise ValueError(f"not of format {FORMAT}")
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise RunError(
                f"{path} is damaged ({type(error).__name__}); name another folder with --run"
            ) from error
        return dict(content)

    def write_configuration(self, content: Mapping[str, Any]) -> None:
        """Write ``run.json``."""
        text = json.dumps({"format": FORMAT, **content, "versions": versions()}, indent=1)
        write_bytes(self.configuration, f"{text}\n".encode())

    def read_checkpoint(self) -> Checkpoint | None:
        """The state to resume from, or None where the run was stopped before its first."""
        return Checkpoint.read(self.checkpoint) if self.checkpoint.exists() else None

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a line to the metrics."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rewind_metrics(self, step: int) -> None:
        """Take out what a killed run wrote after its last checkpoint, since it comes again."""
        if self.metrics.exists():
            rows = [row for row in self.read_metrics() if row["step"] <= step]
            write_bytes(self.metrics, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; a last line cut short by a kill is passed over.

        Rows have ``kind`` (``train``, ``validation``, ``left out`` for a step that was, or
        ``samples`` where there are none), ``step``, ``epoch`` and figures.
        """
        rows = []
        for line in self.metrics.read_text().splitlines() if self.metrics.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
        return rows


def versions() -> dict[str, str]:
    """What a run was made with."""
    from importlib.metadata import version

    return {
        "mintnet": version("mintnet"),
        "torch": str(torch.__version__),
        "lightning": version("lightning"),
        "python": platform.python_version(),
    }
