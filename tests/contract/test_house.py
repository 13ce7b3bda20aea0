"""How the package is laid out: no cycles in `parallel`, and figures to look at."""

import pytest

from benchmarks.house import House, figures


def test_no_modules_of_parallel_import_each_other_in_a_circle():
    # Imports inside functions count: they hide a cycle, and do not end it.
    cycles = House().cycles("espnet3.parallel")
    assert not cycles, "\n".join(" <-> ".join(cycle) for cycle in cycles)


@pytest.mark.exhaustive  # reads each module twice
def test_files_and_lines_per_package_are_printed():
    # No limits: pytest -s tests/contract/test_house.py
    found = dict(figures(House()))
    print()
    for name, figure in found.items():
        print(f"{name:50} {figure:>16}")
    assert found["all files / lines"]
