"""The script ``mintnet``: a module of its own, so that Ctrl-C while torch is imported is caught."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 1 for a mistake, 2 for a wrong call, 130 for Ctrl-C."""
    try:
        from mintnet.cli.app import run

        run(sys.argv[1:] if arguments is None else list(arguments))
        return
    except KeyboardInterrupt as stop:
        code, words = 130, str(stop) or "interrupted"
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("tyro", "rich"):
            raise
        code, words = 1, f"error: the command line needs {error.name}: pip install 'mintnet[cli]'"
    print(f"mintnet: {words}", file=sys.stderr)  # noqa: T201
    raise SystemExit(code)
