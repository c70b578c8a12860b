"""`mintnet bench`: the commands of the package of benchmarks, which is not under ``src``."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "mintnet.benchmarks"

COMMANDS = ("Train", "Sample", "Invert", "Properties", "Families", "Score")
"""The class of each command; its module has the same name in small letters."""


def benchmarks(module: str) -> ModuleType:
    """A module of the benchmarks: in a wheel part of the package, in a clone beside ``src``."""
    if PACKAGE not in sys.modules and find_spec(PACKAGE) is None:
        folder = Path(__file__).parents[3] / "benchmarks"
        spec = spec_from_file_location(
            PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None or not (folder / "__init__.py").is_file():
            raise ValueError("this installation has no benchmarks; install mintnet from a wheel")
        package = module_from_spec(spec)
        sys.modules[PACKAGE] = package
        spec.loader.exec_module(package)
    return import_module(f"{PACKAGE}.{module}")


def __getattr__(name: str) -> Any:
    """The commands as attributes of this module, loaded when they are asked for."""
    if name not in COMMANDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(benchmarks(name.lower()), name)
