"""Runners whose workers are jobs of a real HTCondor, where tests/cluster/htcondor/setup.sh ran."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cluster import where
from tests.cluster.harness import start_htcondor

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
BLOCK = {
    "env": "htcondor",
    "n_workers": 2,
    "options": {
        "cores": 1,
        "memory": "1GB",
        "disk": "1GB",
        "job_extra_directives": {"request_gpus": "1"},
    },
}


@pytest.fixture
def pool():
    """Yield a folder of the user who has the jobs, and what enters the pool; in /tmp, as it is."""
    with tempfile.TemporaryDirectory(prefix="espnet3-htcondor-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with start_htcondor(Path(folder)) as enter:
            yield Path(folder), enter


def test_two_jobs_have_a_gpu_each_and_none_is_left(pool):
    folder, enter = pool
    (folder / "block.yaml").write_text(json.dumps({"parallel": BLOCK}))
    command = [*enter, "env", "-C", folder, sys.executable, where.__file__, "block.yaml", "runner"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert told.returncode == 0, told.stderr

    notes = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in (folder / "trace").iterdir()
    ]
    assert sum(map(len, notes)) == where.N_ITEMS
    gpus = [{each["place"][1] for each in lines} for lines in notes]
    assert sorted(gpus, key=min) == [{"0"}, {"1"}]  # HTCondor says CUDA0 and CUDA1
    queue = [*enter, "condor_q", "-allusers", "-af", "ClusterId", "JobStatus"]
    left = subprocess.run(queue, capture_output=True, text=True, timeout=60, check=True)
    assert left.stdout == ""
