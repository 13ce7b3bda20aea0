"""What tests share is in `tests/helpers`: a test file can be moved, split or removed by itself."""

import ast
from pathlib import Path

from tests.helpers.exhaustive import few, pairs

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


def test_of_a_matrix_make_test_keeps_each_row_and_each_column():
    for n_rows, n_columns in ((7, 20), (20, 7), (2, 2), (5, 1)):
        cases = pairs(range(n_rows), range(n_columns))
        kept = [case for case in cases if not hasattr(case, "marks")]
        assert len(cases) == n_rows * n_columns
        assert len(kept) == max(n_rows, n_columns)
        assert {row for row, _ in kept} == set(range(n_rows))
        assert {column for _, column in kept} == set(range(n_columns))


def test_of_a_list_make_test_keeps_a_few_from_all_over():
    cases = few(range(10), 3)
    assert [case for case in cases if isinstance(case, int)] == [0, 3, 6]
    assert all(case.marks[0].name == "exhaustive" for case in cases if not isinstance(case, int))
