"""2,000 shards and 64 workers in one folder: what leases and status cost beside the work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
MEASURE = """
import dataclasses, json
from benchmarks.many_workers import measure
if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(figure) for figure in measure()]))
"""


def test_leases_and_status_cost_little_beside_the_work(tmp_path):
    # Its 64 workers share the cores with other tests: a bad moment gets a second chance.
    for attempt in ("first", "second"):
        figures = measure(tmp_path / attempt)
        print("", *figures, sep="\n")
        limited = [figure for figure in figures if figure["limit"] is not None]
        assert len(limited) == 2  # the share of the time, and operations per shard
        if all(figure["ours"] <= figure["limit"] for figure in limited):
            return
    pytest.fail(f"too much: {limited}")


def measure(folder: Path) -> list[dict]:
    folder.mkdir()
    program = folder / "measure.py"
    program.write_text(MEASURE)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    told = subprocess.run(
        [sys.executable, program], env=env, capture_output=True, text=True, timeout=400
    )
    assert told.returncode == 0, told.stderr[-3000:]
    return json.loads(told.stdout.splitlines()[-1])
