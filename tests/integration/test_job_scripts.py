"""Job scripts of PBS, SGE and LSF, run in bash; only commands of the schedulers are stand-ins."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.trainer.launching.job_script import LaunchConfig, TrainingJob
from espnet3.trainer.launching.launch import write_script

RUN_PY = """
import json, os, signal, sys, time
stage = sys.argv[sys.argv.index("--stages") + 1]
got = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, frame: got.append(number))
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "SECRET")
seen = {name: os.environ.get(name) for name in names}
with open(f"{stage}.{os.getpid()}.json", "w") as file:
    json.dump({"argv": sys.argv[1:], "cwd": os.getcwd(), **seen}, file)
plan = open("plan").read().split()
if plan[0] == "wait":
    deadline = time.monotonic() + 60
    while not got and time.monotonic() < deadline:
        time.sleep(0.01)
    sys.exit(75 if signal.SIGUSR1 in got else 143 if got else 1)
sys.exit(int(plan[0]) if stage == "train" else 0)
"""


class Cluster:
    """A recipe, and commands that say how they were called."""

    def __init__(self, folder: Path) -> None:
        self.recipe = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        (folder / "run.py").write_text(RUN_PY)
        self.command(
            "qsub", f'echo "$@" >>{shlex.quote(str(self.called))}; exit "${{QSUB_CODE-0}}"'
        )

    @property
    def called(self) -> Path:
        return self.bin / "called"

    def command(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.bin / name).chmod(0o700)

    def plan(self, word: object) -> None:
        (self.recipe / "plan").write_text(str(word))

    def write(self, scheduler: str, n_nodes: int = 1, n_processes: int = 1, **block) -> TrainingJob:
        stages = block.pop("stages", ("train",))
        job = TrainingJob(
            config=LaunchConfig(scheduler=scheduler, **block),
            name="job",
            n_nodes=n_nodes,
            n_processes=n_processes,
            n_gpus=0,
            n_threads=1,
            recipe_dir=str(self.recipe),
            script=str(self.recipe / "exp/launch/now.sh"),
            log=str(self.recipe / "exp/launch/now.log"),
            python=sys.executable,
            arguments=("--training_config", "conf/it's.yaml", 'a="b c"'),
            stages=stages,
        )
        return write_script(job)

    def run(self, job: TrainingJob, **environ: str) -> int:
        path = f"{self.bin}:{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "PBS_JOBID": "7.head", **environ}
        return subprocess.run(["bash", job.script], env=variables, timeout=100).returncode

    def seen(self, stage: str = "train") -> list[dict]:
        return [json.loads(path.read_text()) for path in self.recipe.glob(f"{stage}.*.json")]


@pytest.fixture
def cluster(tmp_path) -> Cluster:
    folder = tmp_path / 'it\'s "my" recipe'
    folder.mkdir()
    return Cluster(folder)


@pytest.mark.parametrize("code", [0, 3])
def test_the_job_ends_with_the_code_of_the_training(cluster, code):
    cluster.plan(code)
    job = cluster.write("pbs", setup=["export SECRET=$((40 + 2))"])
    assert cluster.run(job) == code
    assert not cluster.called.exists()
    (seen,) = cluster.seen()
    words = ["--stages", "train", "--training_config", "conf/it's.yaml", 'a="b c"']
    assert seen["argv"] == words
    assert seen["cwd"] == str(cluster.recipe)
    assert seen["OMP_NUM_THREADS"] == "1"
    assert seen["SECRET"] == "42"


def test_code_75_submits_the_script_again_up_to_the_limit(cluster):
    cluster.plan(75)
    job = cluster.write("pbs", max_restarts=2)
    assert [cluster.run(job) for _ in range(3)] == [0, 0, 75]
    assert cluster.called.read_text().splitlines() == [job.script] * 2
    log = Path(job.log).read_text()
    assert "restart 2 of 2 resumes" in log
    assert "launch.max_restarts. A checkpoint is written; to continue: qsub " in log
    # Whatever the first one started from, the others go on from the checkpoint.
    again = ["resume=auto", "fit.ckpt_path=null"]
    assert sorted(seen["argv"][-2:] == again for seen in cluster.seen()) == [False, True, True]
    # A submission by hand starts counting again.
    assert cluster.run(job) == 0
    assert len(cluster.called.read_text().splitlines()) == 3
    # A training that comes to its end does so, too.
    cluster.plan(0)
    assert cluster.run(job) == 0
    assert not list(Path(job.script).parent.glob("*.restarts"))


def test_a_node_that_may_not_submit_says_what_to_type(cluster):
    cluster.plan(75)
    job = cluster.write("pbs")
    assert cluster.run(job, QSUB_CODE="1") == 75
    assert "To resume from the checkpoint: qsub " in Path(job.log).read_text()


@pytest.mark.parametrize("scheduler", ["sge", "lsf"])
def test_sge_and_lsf_queue_a_job_again_by_its_code(cluster, scheduler):
    cluster.plan(75)
    job = cluster.write(scheduler, max_restarts=1)
    assert [cluster.run(job) for _ in range(2)] == [99, 75]


def test_the_signal_comes_before_the_walltime(cluster):
    cluster.plan("wait")
    job = cluster.write("sge", time="00:00:03", signal_seconds=1)
    assert cluster.run(job) == 99


def test_other_stages_run_in_one_process_around_the_training(cluster):
    cluster.plan(0)
    job = cluster.write("pbs", stages=("collect_stats", "train", "average"))
    assert cluster.run(job) == 0
    assert [len(cluster.seen(stage)) for stage in job.stages] == [1, 1, 1]
    cluster.plan(4)
    assert cluster.run(job) == 4
    assert [len(cluster.seen(stage)) for stage in job.stages] == [2, 2, 1]


def test_torchrun_on_two_nodes(tmp_path):
    cluster = Cluster(tmp_path)
    cluster.plan(75)
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\nlocalhost\n127.0.0.1\n")
    cluster.command("pbs_tmrsh", f'echo "$@" >>{cluster.bin}/remote; shift; exec env -i "$@"')
    job = cluster.write("pbs", 2, 2, time="01:00:00")
    assert cluster.run(job, PBS_NODEFILE=str(hosts)) == 0
    assert cluster.called.read_text().split() == [job.script]
    assert (cluster.bin / "remote").read_text().startswith(f"127.0.0.1 bash {job.script} node ")
    seen = cluster.seen()
    assert sorted(each["RANK"] for each in seen) == ["0", "1", "2", "3"]
    assert {each["WORLD_SIZE"] for each in seen} == {"4"}
    assert {each["LOCAL_WORLD_SIZE"] for each in seen} == {"2"}
    assert {each["OMP_NUM_THREADS"] for each in seen} == {"1"}


def test_a_job_with_another_number_of_nodes_ends_at_once(tmp_path):
    cluster = Cluster(tmp_path)
    cluster.plan(0)
    job = cluster.write("lsf", 2, 1)
    assert cluster.run(job, LSB_MCPU_HOSTS="node1 8 node2 8 node3 8") == 1
    log = Path(job.log).read_text()
    assert "num_nodes is 2, but the number of nodes of the job is 3: node1 node2 node3" in log
    assert not cluster.seen()


def test_where_no_file_can_be_written_the_code_still_counts(cluster):
    cluster.plan(75)
    job = cluster.write("pbs")
    folder = Path(job.script).parent
    (folder / "now.continue").mkdir()
    assert cluster.run(job) == 0
    assert cluster.called.read_text().splitlines() == [job.script]
    # But restarts that cannot be counted would never end.
    (folder / "now.restarts").unlink()
    (folder / "now.restarts").mkdir()
    assert cluster.run(job) == 75
    assert len(cluster.called.read_text().splitlines()) == 1


def test_torchrun_does_not_hide_the_code_of_a_failure(cluster):
    cluster.plan(3)
    job = cluster.write("sge", 1, 2, parallel_environment="smp")
    assert cluster.run(job) == 3
    assert cluster.seen()  # of one rank, or of both: torchrun ends the other with the first
