"""The command line: thin, it parses, calls and prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 1 for a mistake, 2 for a wrong call, 130 for Ctrl-C."""
    try:
        from mintnet.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("tyro", "rich"):
            raise
        line = f"the command line needs {error.name}: pip install 'mintnet[cli]'"
        print(f"mintnet: error: {line}", file=sys.stderr)
        raise SystemExit(1) from None
    run(sys.argv[1:] if arguments is None else list(arguments))


__all__ = ["main"]
