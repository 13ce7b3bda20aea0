"""How the package is laid out: no cycles in `parallel`, and figures to look at."""

from benchmarks.house import House, figures

KNOWN_CYCLES = (
    ("espnet3.parallel.base_runner", "espnet3.parallel.runner_settings"),
    ("espnet3.parallel.detached.launch", "espnet3.parallel.detached.shared"),
    (
        "espnet3.parallel.memory_run",
        "espnet3.parallel.open_pool",
        "espnet3.parallel.parallel",
        "espnet3.parallel.shared_cluster",
    ),
)
"""To be emptied: what was there when this test was written."""


def test_no_modules_of_parallel_import_each_other_in_a_circle():
    # Imports inside functions count: they hide a cycle, and do not end it.
    cycles = [
        cycle
        for cycle in House().cycles("espnet3.parallel")
        if cycle not in map(list, KNOWN_CYCLES)
    ]
    assert not cycles, "\n".join(" <-> ".join(cycle) for cycle in cycles)


def test_files_and_lines_per_package_are_printed():
    # No limits: pytest -s tests/contract/test_house.py
    found = dict(figures(House()))
    print()
    for name, figure in found.items():
        print(f"{name:50} {figure:>16}")
    assert found["all files / lines"]
