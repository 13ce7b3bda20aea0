"""Runners whose workers are jobs of a real Slurm: four nodes with two stand-in GPUs each."""

import itertools
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from espnet3.errors import ConfigError, ResourceError
from espnet3.parallel import BaseRunner, set_parallel
from tests.cluster.clients import wait_for
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.cluster
_PATIENCE = 120.0  # seconds; other programs share the machine


class Provider:
    def __init__(self, trace: Path | None = None, n_jobs: int = 0):
        self.trace = trace
        self.n_jobs = n_jobs

    def build_env_local(self):
        return {"trace": self.trace, "n_jobs": self.n_jobs}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Square(BaseRunner):
    """With `trace`, waits for all jobs to come, and tells there where and when items ran."""

    @staticmethod
    def forward(idx, trace, n_jobs):
        begin = time.time()
        if trace is not None:
            note = trace / os.environ["SLURM_JOB_ID"]
            note.touch()
            wait_until(lambda: len(os.listdir(trace)) == n_jobs, _PATIENCE)
            time.sleep(0.01)
            where = (socket.gethostname(), os.environ["CUDA_VISIBLE_DEVICES"], os.getpid())
            with note.open("a") as file:
                file.write(json.dumps([begin, time.time(), *where]) + "\n")
        return {"idx": idx, "square": idx**2}


class Device(BaseRunner):
    """Waits until both processes of a job have an item, and tells what they see."""

    @staticmethod
    def forward(idx, trace, n_jobs):
        (trace / str(os.getpid())).touch()
        wait_until(lambda: len(os.listdir(trace)) == 2, _PATIENCE)
        return os.environ["SLURM_JOB_ID"], os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]


def test_two_processes_of_a_job_share_its_one_gpu(slurm, tmp_path):
    trace = tmp_path / "trace"
    trace.mkdir()
    set_parallel(slurm.parallel(n_workers=1, processes=2))
    told = Device(Provider(trace))(range(20))
    assert len({pid for _, pid, _ in told}) == 2
    assert len({(job, device) for job, _, device in told}) == 1


def test_jobs_give_the_same_file_as_one_process(slurm, awkward):
    Square(Provider(), output_dir=awkward / "here")(range(100))

    trace = awkward / "trace"
    trace.mkdir()
    set_parallel(slurm.parallel(n_workers=2))
    there = Square(Provider(trace, n_jobs=2), output_dir=awkward / "there")(range(100))

    assert there.read_bytes() == (awkward / "here" / "results.jsonl").read_bytes()
    notes = {
        file.name: [json.loads(line) for line in file.read_text().splitlines()]
        for file in trace.iterdir()
    }
    assert set(notes) == set(slurm.submitted())
    assert sum(len(lines) for lines in notes.values()) == 100
    assert_one_gpu_each(notes)
    assert_one_item_at_a_time(notes)
    assert_no_job_is_left(slurm)


def test_the_infer_stage_decodes_its_test_sets_on_one_set_of_jobs(slurm, awkward):
    from espnet3.config.load import load_config
    from espnet3.io.scp import load_scp
    from espnet3.systems.base.inference import infer

    parts = "tests.helpers.inference_parts"
    test = [
        {"name": name, "data_src": parts, "data_src_args": {"n": n}}
        for name, n in (("clean", 60), ("other", 30))
    ]
    config = {
        "dataset": {"test": test},
        "model": {"_target_": f"{parts}.Speller"},
        "batch_seconds": 20,
        "device": "cpu",
    }

    def decode(parallel, folder):
        (awkward / "inference.yaml").write_text(json.dumps({**config, "parallel": parallel}))
        infer(load_config(awkward / "inference.yaml", below={"inference_dir": str(folder)}))
        return [(folder / name / "hyp.scp").read_bytes() for name in ("clean", "other")]

    here = decode({"env": "local"}, awkward / "here")
    there = decode(slurm.parallel(n_workers=2), awkward / "there")
    assert there == here
    assert len(load_scp(awkward / "there" / "clean" / "hyp.scp")) == 60
    assert len(slurm.submitted()) == 2  # not two for each test set
    decode(slurm.parallel(n_workers=2), awkward / "there")
    assert len(slurm.submitted()) == 2  # and none for what is complete
    assert_no_job_is_left(slurm)


def assert_one_gpu_each(notes):
    used = [{tuple(where) for _, _, *where in lines} for lines in notes.values()]
    assert [len(places) for places in used] == [1, 1]
    gpus = [(host, device) for places in used for host, device, _ in places]
    assert len(set(gpus)) == 2
    assert {device for _, device in gpus} <= {"0", "1"}
    assert all(host.startswith("node") for host, _ in gpus)


def assert_one_item_at_a_time(notes):
    for lines in notes.values():
        spans = sorted((begin, end) for begin, end, *_ in lines)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def assert_no_job_is_left(slurm):
    # At once: jobs whose driver is gone would end by themselves later, if they ever start.
    states = set(slurm.submitted().values())
    assert states
    assert states <= {"CANCELLED", "COMPLETED", "COMPLETING"}


def test_a_job_that_is_cancelled_costs_no_item(slurm, slurm_job, reference):
    run = slurm_job(seconds=0.1)
    driver = run.start()
    wait_for(driver, lambda: run.n_running == 2)
    slurm.cancel(min(slurm.active()))
    _, told = driver.communicate(timeout=_PATIENCE)
    assert driver.returncode == 0, told
    assert "was lost: it left the cluster" in told
    assert run.text == reference
    run.assert_tidy()
    assert_no_job_is_left(slurm)


def test_ctrl_c_cancels_running_jobs(slurm, slurm_job):
    run = slurm_job(seconds=0.2)
    driver = run.start()
    wait_for(driver, lambda: run.n_committed >= 1)
    assert_ctrl_c_cancels_all(slurm, run, driver)


def test_ctrl_c_cancels_jobs_that_are_being_submitted(slurm, slurm_job):
    run = slurm_job(n_workers=8)
    driver = run.start()
    wait_for(driver, slurm.active)
    assert_ctrl_c_cancels_all(slurm, run, driver)


def assert_ctrl_c_cancels_all(slurm, run, driver):
    run.interrupt(driver)
    _, told = driver.communicate(timeout=60)
    assert driver.returncode == 130, told
    assert "to resume, run again: python" in told
    assert "Traceback" not in told
    assert_no_job_is_left(slurm)


def test_an_item_that_fails_cancels_all_jobs(slurm, slurm_job):
    run = slurm_job(bad=[13])
    driver = run.start()
    _, told = driver.communicate(timeout=_PATIENCE)
    assert driver.returncode == 1
    assert "Item 13 (position 13)" in told
    assert "failed on node" in told
    assert_no_job_is_left(slurm)


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"quue": "gpu"}, "Did you mean 'queue'"), ({"memory": None}, "memory: 16GB")],
    ids=["unknown", "missing"],
)
def test_wrong_options_are_told_before_anything_is_submitted(slurm, tmp_path, options, hint):
    set_parallel(slurm.parallel(**options))
    with pytest.raises(ConfigError, match=hint):
        Square(Provider(), output_dir=tmp_path / "out")(range(10))
    assert slurm.submitted() == {}


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"queue": "weekend"}, "invalid partition specified: weekend"),
        ({"job_extra_directives": ["--gres=gpu:3"]}, "node configuration is not available"),
        ({"walltime": "02:00:00"}, "time limit is invalid"),
    ],
    ids=["queue", "gpus", "walltime"],
)
def test_what_slurm_refuses_is_told_in_its_words(slurm, tmp_path, options, hint):
    set_parallel(slurm.parallel(**options))
    with pytest.raises(ResourceError, match=hint):
        Square(Provider(), output_dir=tmp_path / "out")(range(10))
    assert slurm.active() == {}


def test_a_run_whose_driver_was_killed_is_finished_on_this_machine(slurm, slurm_job, reference):
    run = slurm_job(seconds=0.2)
    driver = run.start()
    wait_for(driver, lambda: run.n_committed >= 2)
    driver.kill()
    driver.communicate()
    assert driver.returncode == -signal.SIGKILL
    assert slurm.active()  # these jobs may still be writing, and must not be in the way
    told = run.succeed(parallel={"env": "local", "n_workers": 2}, seconds=0.002)
    assert "Resuming" in told
    assert run.text == reference
    slurm.wait_until_empty(_PATIENCE)
