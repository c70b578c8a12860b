"""`mintnet data`: get data sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from mintnet.cli.command import Command
from mintnet.cli.output import Tasks, console


@dataclass(kw_only=True)
class Get(Command):
    """Download a data set, with its hashes checked; what is there already is verified and kept."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """digits, mnist, cifar10 or imagenet32."""
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")] = Path("data")
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
            out.print(f"here  {file}", markup=False)
        return {"name": self.name, "files": files}
