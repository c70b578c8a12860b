"""The script ``mintnet``: a module of its own, so that Ctrl-C while torch is imported is caught."""

import sys


def main() -> None:
    """Run the command line; exits with 130 for Ctrl-C at any time."""
    try:
        from mintnet.cli import main as run

        run()
    except KeyboardInterrupt:
        print("mintnet: interrupted", file=sys.stderr)  # noqa: T201
        raise SystemExit(130) from None
