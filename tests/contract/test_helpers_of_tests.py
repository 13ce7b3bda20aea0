"""What tests share is in `tests/helpers`: a test file can be moved, split or removed by itself."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
# Stand-ins that have files of their own beside them.
STAND_INS = ("tests.nvml.", "tests.known_issues.golden.")


def imported_from_tests(file: Path) -> set[str]:
    """Return the modules of `tests` that a file imports, at its top or in a function."""
    nodes = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)]
    names = {f"{n.module}.{alias.name}" for n in nodes if not n.level for alias in n.names}
    return {name for name in names if name.startswith("tests.")}


def is_shared(name: str, file: Path) -> bool:
    own = ("tests.cluster.",) if file.is_relative_to(TESTS / "cluster") else ()
    is_test = any(part.startswith("test_") or part == "conftest" for part in name.split(".")[:-1])
    return name.startswith(("tests.helpers.", *STAND_INS, *own)) and not is_test


def test_what_tests_share_is_a_helper():
    wrong = {
        f"{file.relative_to(TESTS)} imports {name}"
        for file in TESTS.rglob("*.py")
        for name in imported_from_tests(file)
        if not is_shared(name, file)
    }
    assert not wrong, "move these to tests/helpers/: " + "\n".join(sorted(wrong))
