"""The script behind the figures of docs/how-it-works.md."""

from textwrap import dedent

import pytest

from benchmarks.house import House


@pytest.fixture
def house(tmp_path):
    files = {
        "__init__.py": "",
        "text.py": "# why\n",
        "io/__init__.py": "",
        "io/atomic.py": "from espnet3 import text\n",
        "io/scp.py": """
            from typing import TYPE_CHECKING
            import espnet3.text
            if TYPE_CHECKING:
                from espnet3.io.tables import Table
            def load():
                from espnet3.io import tables
        """,
        "io/tables.py": "from espnet3.io.scp import load\n",
    }
    for name, text in files.items():
        path = tmp_path / "espnet3" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return House(tmp_path)


def test_imports_inside_functions_count_and_those_for_types_do_not(house):
    assert house.importers["espnet3.io.tables"] == {"espnet3.io.scp"}
    assert house.importers["espnet3.text"] == {"espnet3.io.atomic", "espnet3.io.scp"}
    single = [module.name for module in house.with_one_importer()]
    assert single == ["espnet3.io.scp", "espnet3.io.tables"]


def test_a_cycle_is_found_by_its_modules(house):
    assert house.cycles("espnet3.io") == [["espnet3.io.scp", "espnet3.io.tables"]]


def test_sizes_are_by_package(house):
    assert house.sizes() == {"io": (4, 9), "": (2, 1)}
