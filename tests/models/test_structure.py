"""The layers of the house: who imports whom, and what `import mintnet` costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mintnet

SOURCE = Path(mintnet.__file__).parent
ROWS = (
    *("calculus", "solvers", "bijections", "flows", "models", "distributions", "data"),
    *("training", "analysis", "figures", "cli"),
)
APART = {"data"}  # readers of files know nothing of models, and models nothing of files


def _imports(path: Path) -> set[str]:
    """Parts of the package that a module imports when it runs, annotations aside."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written out in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found.update(name.split(".")[1] for name in names if name.startswith("mintnet."))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


@pytest.mark.parametrize("row", [row for row in ROWS if (SOURCE / row).is_dir()])
def test_each_row_imports_only_from_rows_above(row: str) -> None:
    allowed = {*ROWS[: ROWS.index(row) + 1]} - ({"data"} if row == "models" else set())
    if row in APART:
        allowed = {row}
    for path in (SOURCE / row).rglob("*.py"):
        known = {name for name in _imports(path) if name in ROWS}
        assert known <= allowed, f"{path.name} imports {sorted(known - allowed)}"


def _run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, text=True, timeout=120).strip()


def test_import_is_light() -> None:
    heavy = "lightning_fabric matplotlib PIL tensorboard pooch rich tyro jinja2 torchdiffeq"
    code = f"import sys, mintnet; print([m for m in {heavy.split()!r} if m in sys.modules])"
    assert _run(code) == "[]"


def test_import_is_quick() -> None:
    """Under half a second of processor time beyond PyTorch's own, the best of three."""
    code = "import time, torch; t = time.process_time(); import mintnet; "
    code += "print(time.process_time() - t)"
    assert min(float(_run(code)) for _ in range(3)) < 0.5


def test_no_print_and_no_star_imports() -> None:
    for path in SOURCE.rglob("*.py"):
        if "cli" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", path
            if isinstance(node, ast.ImportFrom):
                assert all(alias.name != "*" for alias in node.names), path
