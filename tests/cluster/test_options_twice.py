"""What a job asks for twice, and where its log goes, as real schedulers see it."""

import json
import re
import sys

import pytest

from espnet3.parallel.clusters.registry import render_job_script
from espnet3.parallel.parallel import as_parallel_config

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PROGRAM = """
import json, sys
from espnet3.parallel import parallel_map, set_parallel

if __name__ == "__main__":
    set_parallel(json.loads(sys.argv[1]))
    print(parallel_map(str.upper, ["a", "b"]))
"""


def submitted(clients, folder, lines):
    """Submit a job that stays on hold; return what Slurm noted."""
    script = folder / "job.sh"
    script.write_text("\n".join(["#!/bin/sh", *lines, "true", ""]))
    told = clients.tell("sbatch", "--hold", "--output=/dev/null", str(script))
    job = told.split()[-1]
    try:
        return clients.tell("scontrol", "show", "job", job)
    finally:
        clients.cancel(job)


def header_of(config):
    script = render_job_script(as_parallel_config(config))
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]


def test_slurm_alone_would_take_the_last_line(slurm, tmp_path):
    lines = ["#SBATCH -p gpu", "#SBATCH --gres=gpu:1", "#SBATCH --gres=gpu:2", "#SBATCH -t 5"]
    noted = submitted(slurm, tmp_path, [*lines, "#SBATCH --time=7", "#SBATCH --mem=1G"])
    assert re.search(r"gres:gpu:2\b|gpu:2\b", noted), noted
    assert "TimeLimit=00:07:00" in noted


def test_slurm_gets_all_that_is_asked_for(slurm, tmp_path):
    directives = ["--gres=gpu:1", "--gres=gpu:1", "--mem-per-cpu=100M", "--time=00:09:00"]
    block = slurm.parallel(walltime="00:05:00", job_extra_directives=directives)
    noted = submitted(slurm, tmp_path, header_of(block))
    assert re.search(r"gpu:1\b", noted), noted
    assert "MinMemoryCPU=100M" in noted
    assert "TimeLimit=00:09:00" in noted
    assert "Partition=gpu" in noted


def test_grid_engine_alone_would_take_the_last_line(sge, tmp_path):
    script = tmp_path / "job.sh"
    lines = ["-l gpu=1", "-l gpu=2,h_rt=60", "-l h_rt=90", "-q gpu.q", "-q long.q"]
    script.write_text("\n".join(["#!/bin/sh", *(f"#$ {line}" for line in lines), "true", ""]))
    told = sge.tell("qsub", "-h", "-o", "/dev/null", "-j", "y", str(script))
    job = re.search(r"\d+", told)[0]
    try:
        noted = sge.tell("qstat", "-j", job)
    finally:
        sge.cancel(job)
    resources = re.search(r"hard resource_list: +(.*)", noted)[1]
    assert sorted(resources.split(",")) == ["gpu=2", "h_rt=90"], noted
    assert re.search(r"hard_queue_list: +gpu.q,long.q", noted), noted


@pytest.mark.parametrize("scheduler", ["slurm_net", "sge"])
def test_a_run_in_memory_leaves_nothing_where_it_was_started(scheduler, request, tmp_path):
    clients = request.getfixturevalue(scheduler)
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    block = clients.parallel(n_workers=1)
    del block["options"]["log_directory"], block["options"]["walltime"]
    command = (sys.executable, tmp_path / "program.py", json.dumps(block))
    code, told = clients.run(*command, cwd=work)
    assert code == 0, told
    assert "['A', 'B']" in told
    assert "30 minutes" in told
    assert list(work.iterdir()) == []
    clients.wait_until_empty()
    assert list(work.iterdir()) == []
