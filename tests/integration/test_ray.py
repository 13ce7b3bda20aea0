"""Runs on a real Ray: two nodes on this machine, or one that the run starts for itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from espnet3.errors import ConfigError
from espnet3.parallel import get_client, use_parallel
from espnet3.shards.records import RecordPaths, read_stop
from tests.helpers.exhaustive import few
from tests.helpers.job_runs import Job
from tests.helpers.leaks import marked_processes
from tests.helpers.ray_cluster import RayNodes
from tests.helpers.waiting import is_alive, wait_for_end, wait_until

# A start of Ray, and of each actor, takes seconds of both cores: `make test` has the faults that
# the driver judges, `make test-exhaustive` all others.
pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install -c constraints.txt ray"
)


@pytest.fixture(scope="module")
def cluster():
    """Start two nodes with two CPUs each; the second has one GPU by Ray's count."""
    folder = Path(tempfile.mkdtemp(prefix="e3ray-", dir="/tmp"))
    nodes = RayNodes(folder)
    yield nodes
    nodes.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def ray_job(tmp_path, cluster):
    """Return a function that makes a job on the cluster, like `job`."""

    def make(n_workers=2, options=(), parallel=(), **settings):
        options = {"address": cluster.address, **dict(options)}
        block = {"env": "ray", "n_workers": n_workers, "options": options, **dict(parallel)}
        return _Job(tmp_path / 'it\'s "a" run', cluster.env, parallel=block, **settings)

    return make


@pytest.fixture
def own_job(tmp_path):
    """Return a function that makes a job with a Ray of its own."""

    def make(**settings):
        (tmp_path / "home").mkdir()
        env = {**os.environ, "HOME": str(tmp_path / "home")}
        block = {"env": "ray", "n_workers": 2}
        return _Job(tmp_path / "out", env, parallel=block, **settings)

    return make


class _Job(Job):
    has_own_session = True

    def __init__(self, out, env, **settings):
        super().__init__(out, **settings)
        self.env = env

    def actors(self):
        """Return the processes of the workers, which are in the names of their logs."""
        return [int(log.name.split("-")[-2]) for log in self.out.glob("logs/worker-*.log")]


def cli(run, *arguments):
    command = [sys.executable, "-m", "espnet3.cli", *map(str, arguments)]
    return subprocess.run(command, env=run.env, capture_output=True, text=True, timeout=100)


def wait_for_workers(run, n_workers=2):
    wait_until(lambda: sum(map(is_alive, run.actors())) >= n_workers, 60)
    return run.actors()


def living(run):
    return set(filter(is_alive, run.actors()))


@pytest.mark.exhaustive
def test_a_thousand_items_with_kills_equal_those_of_local_processes(ray_job, tmp_path):
    hurry = tmp_path / "hurry"
    here = Job(tmp_path / "here", n_items=1000, n_workers=2)
    here.succeed()
    run = ray_job(4, n_items=1000, seconds=0.1, hurry=str(hurry), fault="worker in attempt")
    process = run.start()
    killed = set()
    for _ in range(3):
        wait_until(lambda: living(run) - killed and run.n_committed > len(killed), 60)
        victim = min(living(run) - killed)
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
    hurry.touch()
    _, told = process.communicate(timeout=100)
    assert process.returncode == 0, told
    # Four workers died; one of those that were killed may have held no shard at that moment.
    assert told.count("died: ") >= 3
    assert run.text == here.text
    run.assert_tidy()


def test_an_item_that_kills_its_workers_is_isolated_as_on_local_processes(ray_job, tmp_path):
    settings = {"batch_size": 4, "bad": [13], "how": "kill", "on_error": "skip", "n_items": 40}
    here = Job(tmp_path / "here", parallel={"retries": 1}, **settings)
    here.succeed()
    run = ray_job(parallel={"retries": 1}, **settings)
    told = run.succeed()
    assert run.text == here.text
    assert [each["index"] for each in run.failures()] == [13]
    assert [each["index"] for each in here.failures()] == [13]
    assert "trying halves" in told
    log = run.out / run.failures()[0]["log"]
    assert log.is_file()


@pytest.mark.exhaustive
def test_a_node_that_is_killed_takes_its_shards_with_it_and_no_more(
    ray_job, cluster, reference, tmp_path
):
    hurry = tmp_path / "hurry"
    run = ray_job(4, seconds=1.0, hurry=str(hurry))
    process = run.start()
    wait_for_workers(run, 4)
    cluster.say("kill")
    hurry.touch()
    try:
        _, told = process.communicate(timeout=100)
    finally:
        cluster.say("add")
    assert process.returncode == 0, told
    assert "died: " in told
    assert run.text == reference
    run.assert_tidy()


@pytest.mark.parametrize("where", few(["cluster", "own"], 1))
def test_ctrl_c_ends_the_run_and_its_actors(request, where):
    run = request.getfixturevalue("ray_job" if where == "cluster" else "own_job")(seconds=0.5)
    process = run.start()
    actors = wait_for_workers(run)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    wait_for_end(actors, 20)
    assert not list(run.out.glob("*.part-*"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", ["cluster", "own"])
def test_after_a_sigkill_of_the_driver_the_same_command_finishes(request, reference, where):
    run = request.getfixturevalue("ray_job" if where == "cluster" else "own_job")(
        fault="driver in attempt"
    )
    agents = agents_of_ray()
    killed = run.run()
    assert killed.returncode == -signal.SIGKILL
    n_before = run.n_committed
    actors = run.actors()
    run.succeed()
    wait_for_end(actors, 30)
    assert run.text == reference
    assert run.n_committed >= n_before
    run.assert_tidy()
    # Those of a Ray that the driver had started notice only after a while that it is gone.
    wait_until(lambda: agents_of_ray() <= agents, 120)


def agents_of_ray():
    """Return the processes beside the workers of each Ray that tests of this process started."""
    return {each.pid for each in marked_processes() if each.command.startswith("ray::")}


@pytest.mark.exhaustive
def test_a_ray_of_ones_own_listens_on_loopback_and_leaves_nothing(own_job, tmp_path):
    hurry = tmp_path / "hurry"
    run = own_job(seconds=0.5, hurry=str(hurry), prints=True)
    process = run.start()
    wait_for_workers(run)
    everyone = psutil.Process(process.pid).children(recursive=True)
    listening = [
        link.laddr.ip
        for each in [psutil.Process(process.pid), *everyone]
        for link in each.net_connections("inet")
        if link.status == psutil.CONN_LISTEN
    ]
    hurry.touch()
    out, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    assert not [each for each in everyone if "dashboard" in " ".join(each_command(each))]
    assert not list((tmp_path / "home").iterdir())
    assert "decoding" not in out + told
    assert "decoding 0" in "".join(log.read_text() for log in run.out.glob("logs/worker-*"))
    assert "ray" not in out


def each_command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize(
    "options", few([{"num_gpus": 2}, {"num_cpus": 64}, {"resources": {"moon_dust": 1}}], 1)
)
def test_what_no_node_has_is_told_at_once_and_when_the_run_gives_up(ray_job, options):
    run = ray_job(options=options, parallel={"start_timeout": 2})
    ended = run.run()
    assert ended.returncode == 1
    name = {"num_gpus": "GPU 2", "num_cpus": "CPU 64"}.get(next(iter(options)), "moon_dust 1")
    assert ended.stderr.count(f"{name}, and no node of the Ray cluster has that") == 2, ended.stderr


@pytest.mark.exhaustive
def test_workers_that_find_no_room_are_done_without(ray_job, reference):
    run = ray_job(3, options={"num_cpus": 2})
    run.succeed()
    assert run.text == reference


MAP = """
import json, os, sys, time
from espnet3.parallel import parallel_map, set_parallel
set_parallel(json.loads(sys.argv[1]))
def look(i):
    time.sleep(0.1)
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("TONE")
print(json.dumps(parallel_map(look, range(30))))
"""


@pytest.mark.exhaustive
def test_two_workers_share_a_gpu_and_have_their_own_environment(cluster, tmp_path):
    options = {"num_gpus": 0.5, "num_cpus": 0.5, "runtime_env": {"env_vars": {"TONE": "a4"}}}
    block = {"env": "ray", "n_workers": 2, "options": {"address": cluster.address, **options}}
    told = subprocess.run(
        [sys.executable, "-c", MAP, json.dumps(block)],
        env=cluster.env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    assert len({pid for pid, _, _ in found}) == 2
    assert {(gpu, tone) for _, gpu, tone in found} == {("0", "a4")}


@pytest.mark.exhaustive
def test_commands_see_the_workers_of_a_run_and_cancel_it(ray_job):
    run = ray_job(seconds=0.5, prints=True)
    process = run.start()
    actors = wait_for_workers(run)
    wait_until(lambda: run.n_committed >= 1, 60)
    status, logs, explain = (cli(run, word, run.out) for word in ("status", "logs", "explain"))
    assert status.returncode == 0, status.stderr
    assert explain.returncode == 0, explain.stderr
    assert "decoding" in logs.stdout
    cancelled = cli(run, "cancel", run.out, "--reason", "lunch")
    _, told = process.communicate(timeout=60)
    assert cancelled.returncode == 0, cancelled.stdout
    assert process.returncode == 1, told
    assert read_stop(RecordPaths(run.out)) is not None
    assert "(lunch)" in told
    wait_for_end(actors, 20)


@pytest.mark.exhaustive
def test_the_doctor_knows_ray(ray_job, cluster, tmp_path):
    file = tmp_path / "parallel.yaml"
    block = {"env": "ray", "n_workers": 2, "options": {"address": cluster.address}}
    file.write_text(json.dumps({"parallel": block}))
    told = cli(ray_job(), "doctor", file, "--submit")
    assert told.returncode == 0, told.stdout + told.stderr
    assert f"a Ray cluster answers at {cluster.address}" in " ".join(told.stdout.split())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fault", "block"),
    [
        ("worker stops", {"worker_timeout": 3}),
        ("item hangs", {"item_timeout": 3}),
        ("worker before rename", {}),
    ],
)
def test_a_worker_that_makes_no_progress_is_replaced(ray_job, reference, fault, block):
    run = ray_job(fault=fault, parallel=block)
    assert "died: " in run.succeed()
    assert run.text == reference
    run.assert_tidy()


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["driver between commits", "driver in merge", "both in attempt"])
def test_after_other_kills_the_same_command_finishes_too(ray_job, reference, fault):
    run = ray_job(fault=fault)
    assert run.run().returncode == -signal.SIGKILL
    run.succeed()
    assert run.text == reference
    run.assert_tidy()


def test_get_client_says_that_it_is_for_dask():
    with use_parallel({"env": "ray", "n_workers": 2}):
        with pytest.raises(ConfigError, match="parallel_map"), get_client():
            pass
