"""Workers that see late what others do: no work is lost, no item is there twice.

Workers are killed at random moments meanwhile, also the machine that one runs on. See
docs/file-systems.md for what is assumed of a file system.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from espnet3.shards import layout
from espnet3.shards.manifest import Manifest, publish_manifest
from espnet3.shards.merge import check_complete, concat_files
from espnet3.shards.plan import make_plan
from tests.helpers.delayed_view import can_mount, environment_of, on_machine
from tests.helpers.detached_parts import DetachedFolder, expected
from tests.helpers.exhaustive import few
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[2]
N_ITEMS, N_SHARDS = 240, 40
WORKER = """
import sys, time
from pathlib import Path
from espnet3.shards.open_shards import OpenShards
from espnet3.shards.commit import Done, begin_attempt, commit, finish_attempt
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import load_manifest

root, seconds, timeout = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
while (manifest := load_manifest(root)) is None:
    time.sleep(0.1)
layout = manifest.layout(root)
with Lease(root, heartbeat=1.0, timeout=timeout) as lease:
    board = OpenShards(root, manifest, lease)
    while not board.is_complete():
        shard = board.take()
        if shard is None:
            time.sleep(0.2)
            board.refresh()
            continue
        start, stop = manifest.bounds[shard : shard + 2]
        attempt = begin_attempt(layout, shard)
        with (attempt / "text").open("w") as file:
            for item in range(start, stop):
                file.write(f"utt{item} words\\n")
                time.sleep(seconds)
        done = finish_attempt(attempt, Done(manifest.run_id, shard, start, stop))
        print(shard, commit(attempt, layout, done), flush=True)
        board.finished(shard)
"""


class Workforce:
    """Worker processes in one run folder; what they said is in files, one each."""

    def __init__(self, folder: Path, tmp_path: Path, command, env=None) -> None:
        self.folder, self._tmp_path, self._command, self._env = folder, tmp_path, command, env
        self.processes: list[subprocess.Popen] = []

    def start(self) -> None:
        path = self._tmp_path / f"said-{len(self.processes)}"
        with path.open("w") as file:
            process = subprocess.Popen(
                self._command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT,
                env={**os.environ, **(self._env or {})}, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)

    def living(self) -> list[subprocess.Popen]:
        return [process for process in self.processes if process.poll() is None]

    def said(self) -> list[str]:
        paths = sorted(self._tmp_path.glob("said-*"))
        return [line for path in paths for line in path.read_text().splitlines()]

    def stop(self) -> None:
        for process in self.living():
            process.kill()
            process.wait()


@pytest.fixture
def plan(tmp_path) -> Manifest:
    (tmp_path / "truth").mkdir()
    plan = make_plan(N_ITEMS, N_SHARDS)
    manifest = Manifest({}, N_ITEMS, plan.bounds, plan.costs, None, {})
    return publish_manifest(tmp_path / "truth", manifest, range(N_ITEMS))


@pytest.fixture
def workforce(tmp_path, plan):
    workforces = []

    def make(kind: str, seconds: float) -> Workforce:
        truth = tmp_path / "truth"
        worker = [sys.executable, "-c", WORKER]
        if kind == "process":  # the dead are known by their pid
            env = environment_of(truth, seconds, tmp_path / "scratch")
            workforces.append(Workforce(truth, tmp_path, [*worker, str(truth), "0.02", "60"], env))
        else:  # a machine of its own: the dead are known by their heartbeat
            folder = tmp_path / "mount"
            folder.mkdir()
            command = [*worker, str(folder), "0.02", "10"]
            workforces.append(
                Workforce(truth, tmp_path, on_machine(folder, truth, seconds, command))
            )
        return workforces[-1]

    yield make
    for one in workforces:
        one.stop()


needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs root, /dev/fuse and bindfs")


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        *few([("process", 4.0), ("process", 0.5)], 1),
        pytest.param("machine", 3.0, marks=needs_mounts),
    ],
)
def test_killed_workers_that_see_each_other_late_finish_with_every_item_once(
    workforce, plan, tmp_path, kind, seconds
):
    workers = workforce(kind, seconds)
    chance = random.Random(seconds)
    for _ in range(4):
        workers.start()
    for n_done in (2, 6, 12, 20):
        wait_until(lambda n=n_done: n_committed(workers.folder) >= n, 60)
        chance.choice(workers.living()).kill()
        workers.start()
    wait_until(lambda: not workers.living(), 100)
    said = workers.said()
    ended = Counter(process.returncode for process in workers.processes)
    assert ended == {0: 4, -9: 4}, said
    coverage = check_complete(workers.folder, plan)
    assert len(coverage.committed) == N_SHARDS
    layout = plan.layout(workers.folder)
    merged = tmp_path / "merged"
    concat_files([layout.shard(shard) for shard in range(N_SHARDS)], "text", merged)
    assert merged.read_text() == "".join(f"utt{item} words\n" for item in range(N_ITEMS))
    published = Counter(line.split()[0] for line in said if line.endswith(" True"))
    assert set(published.values()) == {1}, "a commit was taken for damaged, and replaced"


HASTE = """
from espnet3.shards.lease import Lease
Lease.__init__.__kwdefaults__.update(heartbeat=1.0, timeout=10.0)
"""


@pytest.fixture
def agents(tmp_path):
    workforces = []

    def make(kind: str, seconds: float) -> tuple[DetachedFolder, Workforce]:
        truth, scratch = tmp_path / "truth", tmp_path / "scratch"
        run = DetachedFolder(truth, n_items=120, n_shards=30, seconds=0.05)
        command = [sys.executable, "-m", "espnet3.parallel.detached.work", str(truth)]
        env = environment_of(truth, seconds, scratch)
        if kind == "machine":
            # The dead of other machines are known by their silence; a minute of it is long here.
            (scratch / "sitecustomize.py").write_text(HASTE)
            (tmp_path / "mount").mkdir()
            command[-1] = str(tmp_path / "mount")
            command = on_machine(tmp_path / "mount", truth, seconds, command)
        workforces.append(Workforce(truth, tmp_path, command, env))
        return run, workforces[-1]

    yield make
    for one in workforces:
        one.stop()


@pytest.mark.parametrize("kind", few(["process", pytest.param("machine", marks=needs_mounts)], 1))
def test_detached_workers_that_see_each_other_late_finish_and_merge_by_themselves(agents, kind):
    see_late_and_finish(*agents(kind, 3.0))


def test_detached_workers_find_a_group_that_another_one_made(agents, monkeypatch):
    monkeypatch.setattr(layout, "MAX_FLAT_SHARDS", 1)
    monkeypatch.setattr(layout, "GROUP_SIZE", 4)
    run, workers = agents("process", 3.0)
    see_late_and_finish(run, workers)
    assert len(list(run.out.glob("splits.*"))) == 8


def see_late_and_finish(run, workers) -> None:
    for _ in range(3):
        workers.start()
    for n_done in (3, 9):
        wait_until(lambda n=n_done: n_committed(workers.folder) >= n, 60)
        workers.living()[0].kill()
        workers.start()
    wait_until(lambda: not workers.living(), 120)
    ended = Counter(process.returncode for process in workers.processes)
    assert ended == {0: 3, -9: 2}, (workers.said(), run.log())
    assert (run.out / "_SUCCESS.json").exists(), run.log()
    assert run.text == expected(run.n_items)
    done = [line for line in run.log().splitlines() if "ends: done" in line]
    assert len(done) == len({line.partition(" shard ")[2].split()[0] for line in done})


def n_committed(folder: Path) -> int:
    found = [*folder.glob("split.*"), *folder.glob("splits.*/split.*")]
    return len([path for path in found if "part" not in path.name])


LOOK = """
import os, sys, time
one, other = (os.path.join(sys.argv[1], name) for name in ("one", "other"))
assert not os.path.exists(one) and not os.path.exists(other)
print("ready", flush=True)
sys.stdin.readline()
print("seen" if os.path.exists(one) else "not seen")
try:
    open(other, "x")
except FileExistsError:
    print("there for one who creates it")
while sys.argv[2] == "wait" and not os.path.exists(one):
    time.sleep(0.01)
"""
MAKE = "import sys; [open(f'{sys.argv[1]}/{name}', 'w').close() for name in ('one', 'other')]"


@pytest.mark.parametrize("kind", ["process", pytest.param("machine", marks=needs_mounts)])
@pytest.mark.parametrize(("seconds", "how"), [(600.0, "go on"), (0.2, "wait")])
def test_view_is_late_and_not_for_ever_or_these_tests_would_show_nothing(
    tmp_path, kind, seconds, how
):
    truth, mount = tmp_path / "truth", tmp_path / "mount"
    truth.mkdir()
    mount.mkdir()
    command = [sys.executable, "-c", LOOK, str(truth), how]
    env = {**os.environ, **environment_of(truth, seconds, tmp_path / "scratch")}
    if kind == "machine":
        command[-2] = str(mount)
        command, env = on_machine(mount, truth, seconds, command), None
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=env, **pipes) as looker:
        try:
            assert looker.stdout.readline() == "ready\n"
            subprocess.run([sys.executable, "-c", MAKE, truth], cwd=ROOT, env=env, check=True)
            told, _ = looker.communicate("\n", timeout=60)
        finally:
            looker.kill()
    assert looker.returncode == 0
    assert told.splitlines()[1] == "there for one who creates it"
    if how == "go on":
        assert told.splitlines()[0] == "not seen"
