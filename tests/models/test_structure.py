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
    *("training", "analysis", "figures", "cli", "studio"),
)


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
    """Readers of files know nothing of models, and models nothing of files."""
    allowed = {*ROWS[: ROWS.index(row) + 1]} - ({"data"} if row == "models" else set())
    for path in (SOURCE / row).rglob("*.py"):
        known = {name for name in _imports(path) if name in ROWS}
        others = known - ({"data"} if row == "data" else allowed)
        others -= {"analysis"} if path.name == "flow.py" else set()  # methods that pass on
        assert not others, f"{path.name} imports {sorted(others)}"


def test_import_is_light_and_quick() -> None:
    """Under half a second of processor time beyond PyTorch's own, the best of three."""
    heavy = "lightning_fabric matplotlib PIL tensorboard pooch rich tyro jinja2 torchdiffeq"
    code = "import sys, time, torch; t = time.process_time(); import mintnet; "
    code += f"print(time.process_time() - t, [m for m in {heavy.split()!r} if m in sys.modules])"

    def seconds() -> float:
        took, names = subprocess.check_output([sys.executable, "-c", code], text=True).split(" ", 1)
        assert names.strip() == "[]"
        return float(took)

    assert any(seconds() < 0.5 for _ in range(3))
