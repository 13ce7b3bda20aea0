"""Submitting jobs, with stand-ins for sbatch and scancel; real ones are in `tests/cluster`."""

import json
import re
import threading

import pytest

from espnet3.errors import ResourceError, WorkerError
from espnet3.parallel import BaseRunner, open_pool, parallel_map, use_parallel
from tests.helpers.slurm_stand_in import write_command
from tests.helpers.waiting import wait_until

PARALLEL = {
    "env": "slurm",
    "n_workers": 3,
    "options": {
        "cores": 1,
        "memory": "1GB",
        "queue": "weekend",
        "interface": "lo",
    },
}


class Provider:
    def build_env_local(self):
        return {}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        import os

        return {"idx": idx, "threads": os.environ["OMP_NUM_THREADS"]}


def test_a_scheduler_that_is_not_there_is_told_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with use_parallel(PARALLEL), pytest.raises(ResourceError, match="where sbatch works"):
        parallel_map(str, range(10))


def test_when_a_job_is_refused_the_others_are_cancelled(monkeypatch, tmp_path):
    # The folder is made by one sbatch only, as locks are.
    write_command(
        tmp_path / "sbatch", 'mkdir "$0.lock" || { echo "QOS limit" >&2; exit 1; }; echo 7'
    )
    write_command(tmp_path / "scancel", 'echo "$@" >> "$0.log"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with use_parallel(PARALLEL), pytest.raises(ResourceError, match="QOS limit") as error:
        parallel_map(str, range(10))
    assert "#SBATCH -p weekend" in str(error.value)
    assert (tmp_path / "scancel.log").read_text() == "7\n"


def test_job_scripts_run_whatever_the_names_of_their_folders(monkeypatch, tmp_path, awkward):
    # Jobs are processes of this machine, each in a session that scancel ends.
    run = 'setsid bash "$0.$$" >"$0.$$.log" 2>&1 & echo "Submitted batch job $!"'
    write_command(tmp_path / "sbatch", f'cp "$1" "$0.$$"; {run}')
    write_command(tmp_path / "scancel", 'for job; do kill -- "-$job"; done; true')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(awkward)
    shared = tmp_path / "it's a place"
    options = {"cores": 4, "processes": 2, "shared_temp_directory": str(shared)}
    block = {**PARALLEL, "n_workers": 1, "options": {**PARALLEL["options"], **options}}
    with use_parallel(block):
        merged = Runner(Provider(), output_dir=awkward / "out")(range(10))

    results = [json.loads(line) for line in merged.read_text().splitlines()]
    assert results == [{"idx": idx, "threads": "2"} for idx in range(10)]
    assert list(shared.iterdir()) == []  # the certificates are gone
    assert [path.name for path in awkward.iterdir()] == ["out"]
    (script,) = (path for path in tmp_path.glob("sbatch.*") if path.suffix != ".log")
    # The name of the run's own folder of logs cannot be written into a directive.
    (logs,) = (tmp_path / "home/.espnet3/job-logs").iterdir()
    assert f"#SBATCH -o {logs}/" in script.read_text()


def test_a_run_is_merged_though_its_jobs_cannot_be_cancelled(monkeypatch, tmp_path, caplog):
    run = 'setsid bash "$0.$$" >"$0.$$.log" 2>&1 & echo "Submitted batch job $!"'
    write_command(tmp_path / "sbatch", f'cp "$1" "$0.$$"; {run}')
    wait = 'until [ -e "$0.go" ]; do sleep 0.05; done'
    write_command(tmp_path / "scancel", f'{wait}; for job; do kill -- "-$job"; done; true')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(open_pool, "CLOSE_SECONDS", 1.0)
    with use_parallel({**PARALLEL, "n_workers": 1}):
        merged = Runner(Provider(), output_dir=tmp_path / "out")(range(10))
    (tmp_path / "scancel.go").touch()
    wait_until(lambda: "close" not in {each.name for each in threading.enumerate()}, 60)
    assert len(merged.read_text().splitlines()) == 10
    (told,) = (each.getMessage() for each in caplog.records if "Cancel: " in each.getMessage())
    assert re.search(r"within 1 s\. 1 job may still be there\. Cancel: scancel \d+$", told)


def test_jobs_that_fail_at_once_stop_the_run_and_all_are_cancelled(monkeypatch, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    write_command(
        tmp_path / "sbatch",
        'n=1; until mkdir "$0.$n"; do n=$((n + 1)); done 2>/dev/null; echo $n; '
        f'echo "no module named recipe$n" > {folder}/dask-worker-$n.err',
    )
    state = f"{'FAILED':40}{'None':80}{'256':40}"
    write_command(
        tmp_path / "squeue", f'for n in 1 2 3 4 5 6; do printf "%-40s%s\\n" $n "{state}"; done'
    )
    write_command(tmp_path / "scancel", 'echo "$@" >> "$0.log"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    options = {**PARALLEL["options"], "log_directory": str(folder)}
    parallel = {**PARALLEL, "n_workers": 1, "options": options}
    with use_parallel(parallel), pytest.raises(WorkerError, match="3 jobs in a row") as error:
        parallel_map(str, range(10))
    assert "FAILED, exit code 1" in str(error.value)
    assert "  no module named recipe3" in str(error.value)
    assert set((tmp_path / "scancel.log").read_text().split()) == {"1", "2", "3"}
