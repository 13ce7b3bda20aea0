"""Runs that go on without the program that began them, as processes of this machine."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.errors import ConfigError, StaleRunError
from espnet3.parallel import BaseRunner, use_parallel
from espnet3.parallel.detached.handle import DetachedRun
from espnet3.shards.records import RecordPaths, read_jobs
from tests.helpers.providers import Provider
from tests.helpers.waiting import is_alive, wait_until
from tests.helpers.words_recipe import CONFIG, INFERENCE, RUN, Recipe
from tests.nvml.stand_in import build_library, environment

ESPNET3 = Path(sys.executable).with_name("espnet3")
ASYNC = {"mode": "async"}


@pytest.fixture
def _ended(tmp_path):
    """End what a test leaves at work."""
    yield
    for jobs in tmp_path.rglob("detached/jobs"):
        for job in read_jobs(RecordPaths(jobs.parents[1])):
            if is_alive(int(job.job_id)):
                os.kill(int(job.job_id), signal.SIGKILL)


def pids(root: Path) -> list[int]:
    return [int(job.job_id) for job in read_jobs(RecordPaths(root))]


@pytest.mark.usefixtures("_ended")
def test_a_run_whose_driver_is_killed_at_once_is_done_and_merged(job, reference):
    run = job(parallel=ASYNC, seconds=0.02)
    driver = run.start()
    wait_until(lambda: len(pids(run.out)) == 2, 60)
    driver.kill()
    driver.communicate()
    assert DetachedRun(run.out).wait(120) == {"n_shards": 32}
    assert run.text == reference
    wait_until(lambda: not any(map(is_alive, pids(run.out))), 60)
    run.assert_tidy()


@pytest.mark.usefixtures("_ended")
def test_workers_have_no_terminal_and_are_nobody_s_children(job, tmp_path):
    (tmp_path / "last").touch()
    run = job(parallel=ASYNC, last=str(tmp_path / "last"))
    told = run.succeed()
    for pid in pids(run.out):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        assert int(fields[3]) != os.getsid(0)  # no Ctrl-C, and no end of a login, reaches them
        assert int(fields[4]) == 0  # no terminal
        assert int(fields[1]) != os.getpid()
    quoted = shlex.quote(str(run.out))
    assert f"espnet3 wait {quoted}" in told
    assert f"espnet3 cancel {quoted}" in told
    (tmp_path / "last").unlink()
    DetachedRun(run.out).wait(120)


@pytest.mark.usefixtures("_ended")
def test_a_second_call_submits_only_what_is_missing(job, tmp_path, reference):
    run = job(parallel=ASYNC, seconds=3, hurry=str(tmp_path / "hurry"))
    run.succeed()
    first = pids(run.out)
    wait_until(lambda: len(DetachedRun(run.out).status().workforce.living) == 2, 60)
    assert "2 workers are there or in the queue already" in run.succeed()
    assert pids(run.out) == first
    os.kill(first[0], signal.SIGKILL)
    wait_until(lambda: not is_alive(first[0]), 60)
    run.succeed()
    assert len(pids(run.out)) == 3
    (tmp_path / "hurry").touch()
    DetachedRun(run.out).wait(120)
    assert run.text == reference
    assert "is complete already" in run.succeed()
    assert len(pids(run.out)) == 3


def test_a_changed_config_is_refused_before_anything_is_submitted(job):
    run = job()
    run.succeed()
    refused = run.run(parallel=ASYNC, beam=2)
    assert refused.returncode == 1
    assert StaleRunError.__name__ in refused.stderr
    assert not RecordPaths(run.out).run.exists()
    assert not read_jobs(RecordPaths(run.out))


class Double(BaseRunner):
    @staticmethod
    def forward(idx):
        return 2 * idx


class Needed(Double):
    can_detach = False


def test_results_in_memory_cannot_go_on_alone(tmp_path):
    with use_parallel(ASYNC):
        with pytest.raises(ConfigError, match=r"output_dir=.*parallel\.mode: sync"):
            Double(Provider())(range(4))
        with pytest.raises(ConfigError, match="Leave out client"):
            Double(Provider(), output_dir=tmp_path)(range(4), client=object())


def test_a_runner_whose_results_are_needed_waits_and_says_so(tmp_path, caplog):
    with use_parallel(ASYNC):
        assert Needed(Provider())(range(4)) == [0, 2, 4, 6]
        found = Needed(Provider(), output_dir=tmp_path)(range(4))
    assert found.read_text() == "0\n2\n4\n6\n"
    assert "is needed at once" in caplog.text


@pytest.fixture
def decoding(tmp_path) -> Recipe:
    """Return a recipe with two test sets, and no stage of its own."""
    recipe = Recipe(tmp_path / "egs3" / "my corpus's" / "asr")
    script = RUN.replace("src.system import Words", "espnet3.systems.base.system import BaseSystem")
    (recipe.folder / "run.py").write_text(script.replace("Words", "BaseSystem"))
    (recipe.folder / "src/inference.py").write_text(INFERENCE)
    text = CONFIG.replace("test_set: proverbs", "test_set: [proverbs, sayings]")
    (recipe.folder / "conf/decode.yaml").write_text(text)
    return recipe


@pytest.mark.usefixtures("_ended")
def test_the_test_sets_of_a_stage_share_their_workers(decoding):
    stages = ("--stages", "infer", "measure", "--config", "conf/decode.yaml")
    told = decoding.run(*stages, "--detach", "parallel.n_workers=2")
    results = decoding.folder / "exp/decode"
    roots = [results / "proverbs", results / "sayings"]
    assert [len(read_jobs(RecordPaths(root))) for root in roots] == [2, 2]
    assert pids(roots[0]) == pids(roots[1])
    assert "submitted" in told.stdout
    assert not (results / "metrics.json").exists()
    assert decoding.record("infer", "decode")["state"] == "submitted"

    (line,) = [line for line in told.stdout.splitlines() if line.startswith("When it has ended: ")]
    command = line.removeprefix("When it has ended: ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-c", command], cwd=decoding.folder, env={**os.environ, "PATH": path},
        check=True, timeout=180, capture_output=True,
    )  # fmt: skip
    assert (results / "metrics.json").is_file()
    decoding.run(*stages, "exp_tag=sync")
    for root in roots:
        expected = decoding.folder / "exp/sync/decode" / root.name / "hyp.scp"
        assert (root / "hyp.scp").read_bytes() == expected.read_bytes()
    again = decoding.run(*stages, "--detach")
    assert "When it has ended" not in again.stdout  # all was done, so the rest could run at once


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("train", "espnet3 launch. It is for: infer"),
        ("create_dataset-infer", "and then: --stages infer --detach"),
        ("measure", "the stage 'measure' cannot continue alone. It is for: infer"),
    ],
)
def test_other_stages_are_refused_before_anything_starts(recipe_of_words, stages, message):
    files = ("--training_config", "conf/training.yaml", "--inference_config", "conf/inference.yaml")
    metrics = ("--metrics_config", "conf/metrics.yaml")
    told = recipe_of_words.run("--stages", stages, *files, *metrics, "--detach", code=2)
    assert message in told.stderr
    assert not (recipe_of_words.folder / "exp").exists()


def test_the_way_on_after_a_failure_is_detached_too(decoding):
    broken = INFERENCE.replace("        return [{", "        open('not/there')\n        return [{")
    (decoding.folder / "src/inference.py").write_text(broken)
    told = decoding.run("--stages", "infer", "--config", "conf/decode.yaml", "--detach", code=1)
    ways = [line for line in told.stderr.splitlines() if line.startswith("To continue")]
    assert len(ways) == 1, told.stderr
    assert ways[0].endswith("--detach")


@pytest.fixture
def recipe_of_words(tmp_path) -> Recipe:
    return Recipe(tmp_path / "words")


def test_a_dry_run_shows_the_job_of_a_detached_worker(decoding):
    options = "{cores: 2, memory: 4GB, walltime: '01:00:00'}"
    block = ("parallel.env=slurm", "parallel.n_workers=2", f"parallel.options={options}")
    told = decoding.run(
        "--stages", "infer", "--config", "conf/decode.yaml", *block, "--detach", "--dry-run"
    )
    assert "workers: 2 on env: slurm, which continue without this program" in told.stdout
    assert "-m espnet3.parallel.detached.work" in told.stdout
    assert "--walltime 3600" in told.stdout
    assert not (decoding.folder / "exp").exists()


def test_a_backend_that_cannot_detach_is_refused(decoding):
    told = decoding.run(
        "--stages", "infer", "--config", "conf/decode.yaml", "parallel.env=ssh", "--detach", code=1
    )
    assert "write mode: sync, or one of env: local, local_gpu, slurm" in told.stderr


GPU_JOB = """
import os, sys, time
from pathlib import Path
from espnet3.parallel import BaseRunner, set_parallel

class Provider:
    def build_env_local(self):
        return {}
    def build_worker_setup_fn(self):
        return self.build_env_local

class Gpu(BaseRunner):
    @staticmethod
    def forward(idx):
        while idx > 3 and Path("hold").exists():
            time.sleep(0.05)
        return [os.environ["CUDA_VISIBLE_DEVICES"], os.environ["LOCAL_RANK"]]

set_parallel({"env": "local_gpu", "n_workers": 3, "mode": "async"})
Gpu(Provider(), output_dir=sys.argv[1])(range(48))
"""


@pytest.mark.usefixtures("_ended")
def test_each_worker_has_a_gpu_and_a_new_one_gets_that_of_the_dead(tmp_path):
    (tmp_path / "job.py").write_text(GPU_JOB)
    (tmp_path / "hold").touch()
    (tmp_path / "nvml").mkdir()
    variables = environment(build_library(tmp_path / "nvml"), 3, "2,0,1")

    def start():
        command = [sys.executable, "job.py", "out"]
        subprocess.run(
            command, cwd=tmp_path, env=variables, check=True, timeout=120, capture_output=True
        )

    start()
    root = tmp_path / "out"
    first = read_jobs(RecordPaths(root))
    assert [job.gpu for job in first] == ["2", "0", "1"]
    wait_until(lambda: len(DetachedRun(root).status().workforce.living) == 3, 60)
    os.kill(int(first[1].job_id), signal.SIGKILL)
    wait_until(lambda: not is_alive(int(first[1].job_id)), 60)
    start()
    assert [job.gpu for job in read_jobs(RecordPaths(root))] == ["2", "0", "1", "0"]
    (tmp_path / "hold").unlink()
    lines = DetachedRun(root).wait(120).read_text().splitlines()
    seen = {tuple(json.loads(line)) for line in lines}
    assert seen <= {("2,0,1", "0"), ("0,1,2", "0"), ("1,2,0", "0")}
    assert len(seen) > 1
