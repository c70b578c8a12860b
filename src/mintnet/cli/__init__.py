"""The command line: thin, it parses, calls and prints."""

from mintnet_command import main

__all__ = ["main"]
