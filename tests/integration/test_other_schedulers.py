"""Jobs of LSF, PBS, Moab and OAR: the real classes of dask-jobqueue, and stand-in commands.

The options are those that the pages in docs/clusters show. Slurm, Grid Engine and HTCondor are real
in tests/cluster.
"""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from espnet3.errors import ResourceError
from espnet3.parallel import BaseRunner, open_pool, use_parallel
from espnet3.parallel.checkup.submit import ProbeJob, submit_probe
from espnet3.parallel.clusters import job_monitor
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.successor_main import Follower, load_config
from espnet3.shards.records import RecordPaths, read_jobs
from tests.helpers.exhaustive import few
from tests.helpers.providers import Provider
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "lsf": ("bsub", "bjobs", "bhist", "bkill", "bhosts"),
    "pbs": ("qsub", "qstat", "qdel", "pbsnodes"),
    "moab": ("msub", "showq", "checkjob", "canceljob", "pbsnodes"),
    "oar": ("oarsub", "oarstat", "oardel", "oarnodes"),
}
DIRECTIVES = {
    "lsf": ["#BSUB -q gpu", '#BSUB -gpu "num=1'],
    "pbs": ["#PBS -q gpu", "#PBS -l select=1:ncpus=4:mem=32gb:ngpus=1", "#PBS -V", "#PBS -r n"],
    "moab": ["#PBS -q gpu", "#PBS -l nodes=1:ppn=4:gpus=1", "#PBS -V"],
    "oar": ["-q default", "-l /host=1/gpu=1,walltime=04:00:00"],
}


class Where(BaseRunner):
    @staticmethod
    def forward(idx, meeting):
        (Path(meeting) / str(os.getpid())).touch()
        wait_until(lambda: len(os.listdir(meeting)) == 2, 120)
        return {"idx": idx, "folder": os.getcwd(), "threads": os.environ["OMP_NUM_THREADS"]}


@pytest.fixture(params=sorted(COMMANDS))
def scheduler(request, tmp_path, monkeypatch):
    """Put the commands of a scheduler on the path; end the jobs that a test leaves."""
    folder = tmp_path / "bin"
    folder.mkdir()
    source = (Path(__file__).parent / "stand_in_scheduler.py").read_text()
    for name in COMMANDS[request.param]:
        found = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        (folder / name).write_text(f"#!{sys.executable} -S\n{found}{source}")
        (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    monkeypatch.chdir(recipe)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)  # a Dask nanny of another test may have set them
    yield request.param
    for job in folder.glob("jobs/*"):
        os.system(f"kill -9 -- -{(job / 'pid').read_text()} 2>/dev/null")


def block(env: str) -> dict:
    """Return what its page shows, for two workers of this machine."""
    page = (ROOT / "docs" / "clusters" / f"{env}.md").read_text()
    text = re.search(r"```yaml\n(.*?)```", page, re.DOTALL).group(1)
    parallel = OmegaConf.to_container(OmegaConf.create(text).parallel)
    options = {**parallel["options"], "job_script_prologue": ["export TEST=1"]}
    return {**parallel, "n_workers": 2, "options": options}


@pytest.mark.filterwarnings("ignore:OAR Job memory")
def test_items_run_on_jobs_and_no_job_is_left(scheduler, tmp_path, monkeypatch):
    # Asked often: a job that an answer left out would be taken for lost before its worker is there.
    monkeypatch.setattr(job_monitor, "_ASK_SECONDS", (0.5, 0.5))
    (tmp_path / "bin" / "history").touch()
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    with use_parallel(block(scheduler)):
        found = Where(Provider(meeting=str(meeting)), output_dir="out")(range(20))
    lines = [eval(line) for line in found.read_text().splitlines()]
    assert [each["idx"] for each in lines] == list(range(20))
    assert {each["folder"] for each in lines} == {str(tmp_path / "recipe")}
    assert {each["threads"] for each in lines} == {"4"}
    jobs = sorted((tmp_path / "bin" / "jobs").iterdir())
    assert len(jobs) == 2
    for job in jobs:
        submitted = (job / "script").read_text() + (job / "words").read_text().replace("'", "")
        assert all(directive in submitted for directive in DIRECTIVES[scheduler]), submitted
        assert (job / "cancelled").exists()
    assert not list((tmp_path / "recipe").glob(".espnet3-tls*"))


@pytest.mark.parametrize("scheduler", ["pbs"], indirect=True)
def test_a_run_is_merged_though_its_jobs_cannot_be_cancelled(
    scheduler, tmp_path, monkeypatch, caplog
):
    """As where the server of PBS does not answer at the end: the merge comes first."""
    gate = tmp_path / "gate"
    qdel = tmp_path / "bin" / "qdel"
    seen = f"ls {tmp_path}/recipe/out/_SUCCESS.json >> {tmp_path}/seen 2>&1"
    qdel.rename(tmp_path / "bin" / "real_qdel")
    qdel.write_text(f"#!/bin/sh\n{seen}\nwhile [ ! -e {gate} ]; do sleep 0.1; done\n")
    qdel.chmod(0o700)
    monkeypatch.setattr(open_pool, "CLOSE_SECONDS", 2.0)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    begin = time.monotonic()
    try:
        with use_parallel(block(scheduler)):
            found = Where(Provider(meeting=str(meeting)), output_dir="out")(range(20))
    finally:
        gate.touch()
    assert len(found.read_text().splitlines()) == 20
    assert "No such file" not in (tmp_path / "seen").read_text(), "it was merged before"
    told = [each.getMessage() for each in caplog.records if "was not closed" in each.getMessage()]
    assert len(told) == 1
    assert re.search(r"within 2 s.*2 jobs may still be there. Cancel: qdel \d \d", told[0])
    assert time.monotonic() - begin < 120
    wait_until(lambda: "close" not in {each.name for each in threading.enumerate()}, 60)


@pytest.mark.parametrize("scheduler", ["pbs"], indirect=True)
def test_the_doctor_leaves_no_log_of_its_job(scheduler, tmp_path):
    config = ParallelConfig(**{**block(scheduler), "n_workers": 1})
    findings, _ = submit_probe(ProbeJob(config, {}, timeout=120))
    assert findings[0].level == "ok", findings[0]
    # Also where the scheduler brings them later: it waits for them.
    assert (tmp_path / "bin" / "jobs" / "1" / "log.OU").exists()
    assert list((tmp_path / "recipe").iterdir()) == []


@pytest.mark.filterwarnings("ignore:OAR Job memory")
def test_a_refusal_is_told_in_the_words_of_the_scheduler(scheduler, tmp_path):
    (tmp_path / "bin" / "refusal").write_text("gpu: No such queue. Job not submitted.")
    with use_parallel(block(scheduler)), pytest.raises(ResourceError) as error:
        Where(Provider(meeting=""), output_dir="out")(range(20))
    assert "gpu: No such queue. Job not submitted." in str(error.value)
    assert not (tmp_path / "bin" / "jobs").exists()


AFTER = {
    "lsf": '#BSUB -w "ended(1)"',
    "pbs": "#PBS -W depend=afterany:1",
    "moab": "#PBS -l depend=afterany:1",
    "oar": "-a 1",
}
CANCEL = {"lsf": "bkill", "pbs": "qdel", "moab": "canceljob", "oar": "oardel"}


class Patient(BaseRunner):
    @staticmethod
    def forward(idx, hold):
        while idx >= 5 and os.path.exists(hold):
            wait_until(lambda: not os.path.exists(hold), 120)
        return idx


@pytest.mark.filterwarnings("ignore:OAR Job memory")
@pytest.mark.parametrize("scheduler", few(sorted(COMMANDS), 1), indirect=True)
def test_a_detached_job_that_is_cancelled_is_followed_by_its_successor(scheduler, tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    jobs = tmp_path / "bin" / "jobs"
    config = {**block(scheduler), "n_workers": 1, "mode": "async"}
    # OAR gives its jobs a new environment; there, users say where its commands are.
    config["options"]["job_script_prologue"].append(f"export PATH={tmp_path / 'bin'}:$PATH")
    with use_parallel(config):
        run = Patient(Provider(hold=str(hold)), output_dir="out")(range(16))
    wait_until(lambda: (jobs / "2" / "pid").exists() and run.status().status.n_shards_done, 120)
    submitted = (jobs / "2" / "script").read_text() + (jobs / "2" / "words").read_text()
    assert AFTER[scheduler] in submitted.replace("'", "")
    subprocess.run([CANCEL[scheduler], "1"], check=True)
    # The second begins, and submits the third; then there is something to do, and to cancel.
    wait_until(lambda: "2" in {r.after for r in read_jobs(RecordPaths(run.run_dir))}, 120)
    hold.unlink()
    found = run.wait(120)
    assert [int(line) for line in found.read_text().splitlines()] == list(range(16))
    workers = {worker.record.job_id: worker.record for worker in run.status().workforce.workers}
    assert workers["2"].n_shards > 0
    assert workers["2"].generation == 1
    wait_until(lambda: not any(map(is_at_work, jobs.iterdir())), 120)
    assert "cancelled jobs that waited: 3" in run.logs(worker="2")


def is_at_work(job: Path) -> bool:
    try:
        status = Path(f"/proc/{(job / 'pid').read_text()}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status


@pytest.mark.filterwarnings("ignore:OAR Job memory")
def test_a_detached_run_that_is_refused_has_no_job(scheduler, tmp_path):
    (tmp_path / "bin" / "refusal").write_text("gpu: No such queue. Job not submitted.")
    config = {**block(scheduler), "mode": "async"}
    with use_parallel(config), pytest.raises(ResourceError) as error:
        Patient(Provider(hold=""), output_dir="out")(range(20))
    assert "gpu: No such queue. Job not submitted." in str(error.value)
    assert "espnet3.parallel.detached.work" in str(error.value)
    assert not list(Path("out/detached/jobs").iterdir())


@pytest.mark.parametrize("scheduler", ["lsf"], indirect=True)
def test_jobs_that_are_gone_are_replaced_by_those_at_work(scheduler, tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    jobs = tmp_path / "bin" / "jobs"
    with use_parallel({**block(scheduler), "mode": "async"}):
        run = Patient(Provider(hold=str(hold)), output_dir="out")(range(32))
    root = run.run_dir

    def successors():
        return {record.after: record.job_id for record in read_jobs(RecordPaths(root))}

    wait_until(lambda: {"1", "2"} <= successors().keys(), 120)
    assert len(run.status().workforce.living) == 2
    others = Follower((root,), scheduler, "2")
    config = load_config(root, scheduler)
    assert list(others.complete_workforce([root], config)) == []  # nobody is missing

    subprocess.run(["bkill", successors()["2"]], check=True)
    (told,) = others.complete_workforce([root], config)
    assert re.fullmatch(r"job \d+ follows when job 2 has ended", told)
    for number in (successors()["1"], "1"):
        subprocess.run(["bkill", number], check=True)
    wait_until(lambda: len(run.status().workforce.living) == 1, 120)
    (told,) = others.complete_workforce([root], config)
    assert told.startswith("1 of 2 workers were missing; submitted: ")

    none = config.model_copy(update={"max_successors": 0})
    newest = Follower((root,), scheduler, "77")
    assert list(newest.submit_successor([root], none)) == [
        "no successor: parallel.max_successors is 0"
    ]
    hold.unlink()
    assert len(run.wait(120).read_text().splitlines()) == 32
    wait_until(lambda: not any(map(is_at_work, jobs.iterdir())), 120)
