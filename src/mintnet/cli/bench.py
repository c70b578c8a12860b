"""`mintnet bench`: the commands of the package of benchmarks, which is not under ``src``."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "mintnet.benchmarks"
COMMANDS = ("Train", "Sample", "Invert", "Properties", "Families", "Accelerate", "Score", "Restore")


def benchmarks(module: str) -> ModuleType:
    """A module of the benchmarks: in a wheel part of the package, in a clone beside ``src``."""
    if PACKAGE not in sys.modules and find_spec(PACKAGE) is None:
        file = Path(__file__).parents[3] / "benchmarks" / "__init__.py"
        places = [str(file.parent)]
        spec = spec_from_file_location(PACKAGE, file, submodule_search_locations=places)
        if spec is None or spec.loader is None or not file.is_file():
            raise ValueError("this installation has no benchmarks; install mintnet from a wheel")
        sys.modules[PACKAGE] = package = module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module(f"{PACKAGE}.{module}")


def __getattr__(name: str) -> Any:
    """The commands as attributes of this module: `Train` is in ``train.py``, and so on."""
    if name not in COMMANDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(benchmarks(name.lower()), name)
