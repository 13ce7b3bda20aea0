"""What a run asks of the file system per shard does not grow with its workers or its shards."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PER_SHARD, PER_WORKER = 60, 250
"""See docs/file-systems.md: to run and merge a shard; to start and end a worker."""
RUN = """
import json, sys, time
from collections import Counter
from pathlib import Path
from benchmarks.many_workers import plan, run_workers
root, diaries = Path(sys.argv[1]) / "run", Path(sys.argv[1]) / "diaries"
diaries.mkdir()
plan(root, int(sys.argv[2]), 0.02)
found = run_workers(root, diaries, int(sys.argv[3]), lambda: time.sleep(0.1))
total = Counter()
for diary in found:
    total.update(diary.operations)
print(json.dumps({"operations": total, "n_attempts": sum(d.n_attempts for d in found)}))
"""


@pytest.mark.parametrize(("n_shards", "n_workers"), [(240, 8), (240, 32)])
def test_operations_per_shard_stay_below_what_is_documented(tmp_path, n_shards, n_workers):
    command = [sys.executable, "-c", RUN, tmp_path.resolve(), str(n_shards), str(n_workers)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert told.returncode == 0, told.stderr[-3000:]
    found = json.loads(told.stdout.splitlines()[-1])
    assert (tmp_path / "run" / "_SUCCESS.json").exists()
    assert found["n_attempts"] >= n_shards
    n_operations = sum(found["operations"].values())
    assert n_operations > 20 * n_shards, "they were not counted"
    assert n_operations <= PER_SHARD * n_shards + PER_WORKER * n_workers, found
