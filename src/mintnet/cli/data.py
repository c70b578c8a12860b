"""`mintnet data`: get data sets, and check the files that are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape

from mintnet.cli.command import Command
from mintnet.cli.output import Tasks, console

Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
Folder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
_COLOURS = {"verified": "green", "present": "green", "missing": "yellow", "damaged": "red"}


@dataclass(kw_only=True)
class Get(Command):
    """Download a data set, with its hashes checked; what is there already is verified and kept."""

    name: Name
    """digits, mnist, cifar10 or imagenet32."""
    folder: Folder = Path("data")
    """Where to; a subfolder of the set's name is made."""

    def run(self) -> dict[str, Any]:
        from mintnet.data import get

        out = console()
        with Tasks(out) as task:
            task(f"getting {self.name}")
            files = get(self.name, self.folder)
        if not files:
            out.print(f"{self.name}: comes with the package, there is nothing to get")
        for file in files:
            out.print(f"[green]here[/]  {escape(str(file))}")
        return {"name": self.name, "files": files}


@dataclass(kw_only=True)
class VerifyFiles(Command):
    """Compare the files of a data set with the published ones; downloads nothing."""

    name: Name
    """digits, mnist, cifar10 or imagenet32."""
    folder: Folder = Path("data")
    """Where they are."""

    def run(self) -> dict[str, Any]:
        from mintnet.data import verify

        out = console()
        states = verify(self.name, self.folder)
        for file, status in states:
            out.print(f"[{_COLOURS[status]}]{status:8}[/]  {escape(str(file))}")
        if not states:
            out.print(f"{self.name}: comes with the package, there is nothing to check")
        wrong = [s.file for s in states if s.status in ("missing", "damaged")]
        if wrong:
            raise ValueError(
                f"{self.name}: {len(wrong)} of {len(states)} files missing or damaged, the first "
                f"is {wrong[0]}"
            )
        return {"name": self.name, "files": {str(s.file): s.status for s in states}}
