"""Submitting jobs, with stand-ins for sbatch and scancel; real ones are in `tests/cluster`."""

from pathlib import Path

import pytest

from espnet3.errors import ResourceError
from espnet3.parallel import parallel_map, use_parallel

PARALLEL = {
    "env": "slurm",
    "n_workers": 3,
    "options": {
        "cores": 1,
        "memory": "1GB",
        "queue": "weekend",
        "interface": "lo",
        "scheduler_options": {"dashboard_address": "127.0.0.1:0"},
    },
}


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


def write_command(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
