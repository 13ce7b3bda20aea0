"""Run the benchmarks: all of them, or those that are named.

Light to import: processes of multiprocessing import it again, and what they take is measured.
"""

import argparse
import importlib
import logging
import sys
import time
from pathlib import Path

BENCHMARKS = (
    "start_up",
    "item_cost",
    "spread",
    "whole_call",
    "ten_million",
    "metadata_server",
    "run_status",
    "merge_speed",
    "fingerprint",
    "scoring",
    "decoding",
    "test_sets",
    "recognition",
    "workers",
    "loader",
    "training",
    "digits_training",
    "first_step",
)
LONG = (
    "five_minutes", "clusters", "beside_submitit", "many_shards", "many_workers",
    "file_operations", "peers", "espnet2",
)  # fmt: skip
"""Run only when they are named; each that runs alone has a report of its own."""


def main() -> int:
    """Run, show, and tell by the exit code whether all limits are kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = (*BENCHMARKS, *LONG)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(known)}")
    names = parser.parse_args().names
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; known: {', '.join(known)}")
    ours = logging.getLogger("espnet3")  # a run says on stderr that it is complete; not here
    ours.addHandler(logging.StreamHandler())
    ours.setLevel(logging.WARNING)
    return _run(names)


def _run(names: list[str]) -> int:
    from benchmarks.figures import Figure
    from benchmarks.machine import describe_machine
    from benchmarks.report import show_table, write_report

    machine = describe_machine(names)
    rows = []
    for name in names or BENCHMARKS:
        begin = time.monotonic()
        module = importlib.import_module(f"benchmarks.{name}")
        rows += [(name, line) for line in module.measure()]
        print(f"{name}: measured in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    show_table(rows)
    is_alone = len(names) == 1 and names[0] in LONG
    if not names or is_alone:  # what a few benchmarks say must not replace a full report
        print(f"Written to {write_report(rows, machine, *names).relative_to(Path.cwd())}")
    return int(any(isinstance(line, Figure) and line.is_over for _, line in rows))


if __name__ == "__main__":
    sys.exit(main())
