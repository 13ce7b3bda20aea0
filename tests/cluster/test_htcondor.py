"""Runners whose workers are jobs of a real HTCondor, where tests/cluster/htcondor/setup.sh ran."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from espnet3.schedulers.htcondor import HTCondor
from tests.cluster import where
from tests.cluster.harness import start_htcondor
from tests.helpers.waiting import wait_until

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


ASK = """
import json, sys
from espnet3.schedulers import ask_jobs, known_scheduler
kind_of_end = known_scheduler("htcondor").kind_of_end
states = ask_jobs("htcondor", sys.argv[1:]).items()
print(json.dumps({job: [state.phase, kind_of_end(state)] for job, state in states}))
"""


def test_a_job_whose_time_is_over_has_ended_and_leaves_the_queue(pool):
    folder, enter = pool
    settings = {
        "executable": "/bin/sleep",
        "arguments": "600",
        "request_memory": "10MB",
        "request_disk": "1MB",
        "allowed_job_duration": "3",
        **HTCondor.default_settings,
    }
    lines = [f"{name} = {value}" for name, value in settings.items()]
    (folder / "job.sub").write_text("\n".join([*lines, "queue", ""]))

    def tell(*words: str) -> str:
        command = [*enter, "env", "-C", str(folder), *words]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return told.stdout

    def ask() -> dict[str, list[str]]:
        found: dict[str, list[str]] = json.loads(tell(sys.executable, "-c", ASK, job, "999.0"))
        return found

    job = HTCondor().job_id(tell("condor_submit", "job.sub"))
    wait_until(lambda: ask()[job][0] == "ended", 120, 0.5)
    assert ask() == {job: ["ended", "walltime"], "999.0": ["unknown", ""]}
    wait_until(lambda: tell("condor_q", job, "-af", "JobStatus") == "", 120, 0.5)
    assert ask()[job] == ["ended", "walltime"]
