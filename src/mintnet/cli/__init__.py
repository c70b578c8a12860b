"""The command line: thin, it parses, calls and prints."""

from mintnet.cli.main import main

__all__ = ["main"]
