"""`mintnet bench`: the package of benchmarks, which is not under ``src``."""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = "mintnet.benchmarks"


def benchmarks(module: str) -> ModuleType:
    """A module of the benchmarks: in a wheel part of the package, in a clone beside ``src``."""
    if PACKAGE not in sys.modules and find_spec(PACKAGE) is None:
        file = Path(__file__).parents[3] / "benchmarks" / "__init__.py"
        spec = spec_from_file_location(PACKAGE, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise ValueError("this installation has no benchmarks; install mintnet from a wheel")
        sys.modules[PACKAGE] = package = module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module(f"{PACKAGE}.{module}")
