"""The on-disk protocol under whatever happens: a model of what must be there, and real files.

Drivers come, die and come back; workers write, finish, commit, crash, come late, or go on in a run
that was started anew without them; folders are damaged. At any moment the committed shards are
those of the model, and a merge gives each item once, in order, or says what is missing.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from espnet3.errors import IncompleteRunError
from espnet3.shards import commit as commit_module
from espnet3.shards.commit import (
    Done,
    attempts,
    begin_attempt,
    commit,
    committed_shards,
    discard_attempt,
    finish_attempt,
    set_aside,
    set_aside_damaged,
)
from espnet3.shards.layout import DONE, POSITION, is_group, is_protocol_name
from espnet3.shards.lease import Lease, claims
from espnet3.shards.manifest import Manifest, collect_items, load_manifest, publish_manifest
from espnet3.shards.merge import check_complete, concat_files, read_coverage
from espnet3.shards.plan import make_plan
from espnet3.shards.status import read_status

N_ITEMS = 12
PICK = st.integers(0, 1000)
GROUP_SIZES = st.sampled_from([None, 2])


@dataclass
class Worker:
    """A process that is working on an attempt at a shard; its folder may be gone already."""

    manifest: Manifest
    shard: int
    attempt: Path
    token: str
    n_written: int = 0
    done: Done | None = None

    @property
    def items(self) -> range:
        return range(*self.manifest.bounds[self.shard : self.shard + 2])

    @property
    def is_intact(self) -> bool:
        return (self.attempt / (POSITION if self.done is None else DONE)).exists()

    def lines(self, n: int | None = None) -> str:
        return "".join(f"utt{item} {self.token}\n" for item in self.items[:n])


def pick(things, number: int):
    return things[number % len(things)]


class Protocol(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="protocol-")
        self.root = Path(self.folder) / 'it\'s a "new\n run" [0] {é}'
        self.root.mkdir()
        # A power cut is not part of the model, and waiting for the disk would be most of the time.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda descriptor: None)
        self.drivers: list[Lease] = []
        self.workers: list[Worker] = []
        self.n_tokens = 0
        self.expected: dict[int, str] = {}  # the text of each committed shard
        self.tampered: set[int] = set()

    @initialize(group_size=GROUP_SIZES)
    def first_plan(self, group_size: int | None) -> None:
        self.plan(4, group_size)

    def teardown(self) -> None:
        for driver in self.drivers:
            driver.__exit__()
        shutil.rmtree(self.folder)
        self.patch.undo()

    def plan(self, n_shards: int, group_size: int | None) -> None:
        plan = make_plan(N_ITEMS, n_shards)
        items = collect_items([*range(1, N_ITEMS), 0])  # no range: a file beside the manifest
        manifest = Manifest({}, N_ITEMS, plan.bounds, plan.costs, None, {}, group_size=group_size)
        self.manifest = publish_manifest(self.root, manifest, items)
        self.layout = self.manifest.layout(self.root)
        self.expected, self.tampered = {}, set()

    def forget(self, shard: int) -> None:
        self.expected.pop(shard, None)
        self.tampered.discard(shard)

    # Drivers

    @rule()
    @precondition(lambda self: len(self.drivers) < 3)
    def start_driver(self) -> None:
        """Start or resume: sweep what the dead left, make room for what is damaged."""
        driver = Lease(self.root, heartbeat=1000, timeout=60)
        driver.__enter__()
        self.drivers.append(driver)
        living = {one.owner.owner_id for one in self.drivers}
        assert {owner.owner_id for owner in driver.others()} == living - {driver.owner.owner_id}
        driver.sweep()
        claimed = claims(self.layout.leases)
        assert set(claimed.values()) <= living
        for shard, folders in attempts(self.layout).items():
            if self.layout.shard_name(shard) not in claimed:
                for folder in folders:
                    discard_attempt(folder)
        for shard in read_coverage(self.root, self.manifest).missing:
            set_aside_damaged(self.layout, shard)
            assert not self.layout.shard(shard).exists()

    @rule(number=PICK)
    @precondition(lambda self: self.drivers)
    def driver_ends(self, number: int) -> None:
        driver = self.drivers.pop(number % len(self.drivers))
        driver.__exit__()
        assert driver.owner.owner_id not in claims(driver.folder).values()

    @rule(number=PICK)
    @precondition(lambda self: self.drivers)
    def driver_dies(self, number: int) -> None:
        """Leave owner and claims behind, without a heartbeat; its workers go on."""
        driver = self.drivers.pop(number % len(self.drivers))
        driver._stop.set()
        driver._thread.join()
        os.utime(driver.folder / f"{driver.owner.owner_id}.owner", (0, 0))

    @rule(n_shards=st.integers(1, 6), group_size=GROUP_SIZES, is_tidy=st.booleans())
    def start_anew(self, n_shards: int, group_size: int | None, is_tidy: bool) -> None:
        """Replace the run, its drivers being dead; perhaps the old shards stay where they are."""
        while self.drivers:
            self.driver_dies(0)
        (self.root / "manifest.json").unlink()
        for path in list(self.root.iterdir()) if is_tidy else []:
            if is_protocol_name(path.name) or is_group(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.plan(n_shards, group_size)

    @rule(n_shards=st.integers(1, 6))
    def second_driver_plans_too_late(self, n_shards: int) -> None:
        plan = make_plan(5, n_shards)
        other = Manifest({}, 5, plan.bounds, plan.costs, None, {"beam": 3})
        items = collect_items([4, 2, 0, 1, 3])
        assert publish_manifest(self.root, other, items) == self.manifest
        assert list(self.manifest.open_items(self.root)) == [*range(1, N_ITEMS), 0]

    # Workers

    @rule(driver=PICK, number=PICK, with_claim=st.booleans())
    @precondition(lambda self: self.drivers and len(self.workers) < 8)
    def begin(self, driver: int, number: int, with_claim: bool) -> None:
        """Begin an attempt; without a claim it is the twin of a task that was taken for lost."""
        shard = number % self.manifest.n_shards
        if with_claim and not pick(self.drivers, driver).claim(self.layout.shard_name(shard)):
            return
        self.add_worker(self.manifest, shard)

    @rule(number=PICK)
    @precondition(lambda self: self.workers and len(self.workers) < 8)
    def worker_goes_on_to_its_next_shard(self, number: int) -> None:
        """Begin another attempt in the same run, even one that was replaced by another."""
        manifest = pick(self.workers, number).manifest
        self.add_worker(manifest, number % manifest.n_shards)

    def add_worker(self, manifest: Manifest, shard: int) -> None:
        self.n_tokens += 1
        attempt = begin_attempt(manifest.layout(self.root), shard)
        self.workers.append(Worker(manifest, shard, attempt, f"by-{self.n_tokens}"))

    @rule(number=PICK, n=st.integers(1, 6), is_careless=st.booleans())
    @precondition(lambda self: self.workers)
    def write(self, number: int, n: int, is_careless: bool) -> None:
        """Write records; a careless writer makes the folder that is not there (any more)."""
        worker = pick(self.workers, number)
        if worker.done is not None or not (is_careless or worker.attempt.exists()):
            return
        worker.attempt.mkdir(parents=True, exist_ok=True)
        with (worker.attempt / "text").open("a") as file:
            file.write(worker.lines()[len(worker.lines(worker.n_written)) :][: n * 10])
        worker.n_written = min(worker.n_written + n, len(worker.items))

    @rule(number=PICK)
    @precondition(lambda self: self.workers)
    def finish(self, number: int) -> None:
        self.finish_worker(pick(self.workers, number))

    def finish_worker(self, worker: Worker) -> None:
        if worker.done is not None:
            return
        if not worker.is_intact:
            with pytest.raises(FileNotFoundError):
                finish_attempt(worker.attempt, self.done_of(worker))
            return
        (worker.attempt / "text").write_text(worker.lines())
        worker.done = finish_attempt(worker.attempt, self.done_of(worker))

    def done_of(self, worker: Worker) -> Done:
        items = worker.items
        return Done(worker.manifest.run_id, worker.shard, items.start, items.stop)

    @rule(number=PICK, step=st.sampled_from(["fsync_file", "fsync_dir", "_write_done"]))
    @precondition(lambda self: self.workers)
    def discard_while_it_finishes(self, number: int, step: str) -> None:
        worker = pick(self.workers, number)
        if worker.done is not None or not worker.is_intact:
            return
        (worker.attempt / "text").write_text(worker.lines())
        real = getattr(commit_module, step)

        def discard_first(*args):
            discard_attempt(worker.attempt)
            return real(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commit_module, step, discard_first)
            with pytest.raises(FileNotFoundError):
                finish_attempt(worker.attempt, self.done_of(worker))

    @rule(number=PICK)
    @precondition(lambda self: self.workers)
    def discard(self, number: int) -> None:
        """Give an attempt up that may still be written to."""
        discard_attempt(pick(self.workers, number).attempt)

    @rule(number=PICK)
    @precondition(lambda self: self.workers)
    def commit(self, number: int) -> None:
        worker = pick(self.workers, number)
        self.finish_worker(worker)
        self.commit_worker(worker)

    @rule(shard=PICK)
    @precondition(lambda self: self.drivers)
    def run_shard(self, shard: int) -> None:
        """Do what a worker does when nothing happens."""
        self.add_worker(self.manifest, shard % self.manifest.n_shards)
        self.finish_worker(self.workers[-1])
        self.commit_worker(self.workers[-1])

    def commit_worker(self, worker: Worker) -> None:
        if worker.done is None:
            return
        self.workers.remove(worker)
        is_current = worker.manifest.run_id == self.manifest.run_id
        layout = worker.manifest.layout(self.root)
        if is_current and not worker.is_intact:
            with pytest.raises(FileNotFoundError):
                commit(worker.attempt, layout, worker.done)
            return
        is_first = is_current and worker.shard not in self.expected
        assert commit(worker.attempt, layout, worker.done) is is_first
        assert not worker.attempt.exists()
        if is_first:
            self.expected[worker.shard] = worker.lines()

    @rule(number=PICK, step=st.sampled_from(["_rename", "read_done", "set_aside_damaged"]))
    @precondition(lambda self: len(self.workers) < 7 and self.drivers)
    def twin_commits_in_the_middle_of_a_commit(self, number: int, step: str) -> None:
        """Let the twin be quicker once the first has seen that the shard is free or damaged."""
        shard = number % self.manifest.n_shards
        self.add_worker(self.manifest, shard)
        self.add_worker(self.manifest, shard)
        slow, quick = self.workers[-2:]
        for worker in (slow, quick):
            self.finish_worker(worker)
        real = getattr(commit_module, step)

        def quick_one_first(*args):
            patch.undo()
            self.commit_worker(quick)
            return real(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commit_module, step, quick_one_first)
            self.commit_worker_or_twin(slow, quick)

    def commit_worker_or_twin(self, slow: Worker, quick: Worker) -> None:
        assert slow.done is not None
        self.workers.remove(slow)
        is_free = slow.shard not in self.expected
        is_published = commit(slow.attempt, self.layout, slow.done)
        assert is_published is (is_free and quick in self.workers)
        assert not slow.attempt.exists()
        if is_published:
            self.expected[slow.shard] = slow.lines()

    @rule(number=PICK, step=st.sampled_from(["_rename", "read_done", "set_aside_damaged"]))
    @precondition(lambda self: self.drivers)
    def run_is_started_anew_in_the_middle_of_a_commit(self, number: int, step: str) -> None:
        """Let a new run commit its shard just before the old one's worker acts."""
        self.add_worker(self.manifest, number % self.manifest.n_shards)
        zombie = self.workers.pop()
        (zombie.attempt / "text").write_text(zombie.lines())
        done = finish_attempt(zombie.attempt, self.done_of(zombie))
        layout, real, anew = self.layout, getattr(commit_module, step), []

        def start_anew_first(*args):
            patch.undo()
            self.start_anew(self.manifest.n_shards, self.manifest.group_size, is_tidy=False)
            self.start_driver()
            anew.append(True)
            self.run_shard(zombie.shard)
            return real(*args)

        is_free = zombie.shard not in self.expected
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commit_module, step, start_anew_first)
            try:
                is_published = commit(zombie.attempt, layout, done)
            except FileNotFoundError:  # swept by the driver that started anew
                is_published = False
        assert is_published is (is_free and not anew)
        if is_published:
            self.expected[zombie.shard] = zombie.lines()

    @rule(number=PICK)
    @precondition(lambda self: self.workers)
    def worker_dies(self, number: int) -> None:
        """Leave the folder as it is, whatever is in it."""
        self.workers.remove(pick(self.workers, number))

    # Damage

    @rule(number=PICK, length=st.integers(-1, 200), how=st.sampled_from(["cut", "gone", "empty"]))
    @precondition(lambda self: self.expected)
    def damage_done(self, number: int, length: int, how: str) -> None:
        shard = pick(sorted(self.expected), number)
        path = self.layout.shard(shard) / DONE
        content = path.read_bytes().rstrip()
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(content[: length % len(content)] if how == "cut" else b"")
        self.forget(shard)

    @rule(number=PICK)
    @precondition(lambda self: self.expected)
    def tamper_with_a_file(self, number: int) -> None:
        shard = pick(sorted(self.expected), number)
        with (self.layout.shard(shard) / "text").open("a") as file:
            file.write("forged\n")
        self.tampered.add(shard)

    @rule()
    @precondition(lambda self: self.tampered)
    def remove_what_the_message_says(self) -> None:
        shard = min(self.tampered)
        shutil.rmtree(self.layout.shard(shard))
        self.forget(shard)

    @rule(number=PICK)
    @precondition(lambda self: self.expected)
    def retry_a_shard(self, number: int) -> None:
        shard = pick(sorted(self.expected), number)
        set_aside(self.layout, shard)
        self.forget(shard)

    @rule(number=PICK, other=PICK)
    @precondition(lambda self: self.expected)
    def copy_a_shard_to_another(self, number: int, other: int) -> None:
        shard, place = pick(sorted(self.expected), number), other % self.manifest.n_shards
        if not self.layout.shard(place).exists():
            self.layout.shard(place).parent.mkdir(exist_ok=True)
            shutil.copytree(self.layout.shard(shard), self.layout.shard(place))

    # What must hold

    @rule()
    def merge(self) -> None:
        target = self.root / "text"
        old = target.read_text() if target.exists() else None
        missing = [s for s in range(self.manifest.n_shards) if s not in self.expected]
        if missing or self.tampered:
            with pytest.raises(IncompleteRunError) as error:
                check_complete(self.root, self.manifest)
            for shard in missing[:5]:
                start, stop = self.manifest.bounds[shard : shard + 2]
                assert f"shard {shard}: items {start} to {stop - 1}" in str(error.value)
            if not missing:
                folders = [str(self.layout.shard(shard)) for shard in self.tampered]
                assert any(f"Remove the folder {folder} and" in str(error.value)
                           for folder in folders)  # fmt: skip
            assert (target.read_text() if target.exists() else None) == old
            return
        check_complete(self.root, self.manifest)
        folders = [self.layout.shard(shard) for shard in range(self.manifest.n_shards)]
        assert concat_files(folders, "text", target) == N_ITEMS
        ids = [line.split()[0] for line in target.read_text().splitlines()]
        assert ids == [f"utt{item}" for item in range(N_ITEMS)]

    @invariant()
    def committed_shards_are_those_of_the_model_and_whole(self) -> None:
        found = committed_shards(self.layout, self.manifest.run_id)
        assert sorted(found) == sorted(self.expected)
        for shard, text in self.expected.items():
            found_text = (self.layout.shard(shard) / "text").read_text()
            assert found_text.replace("forged\n", "") == text

    @invariant()
    def status_counts_what_is_committed(self) -> None:
        status = read_status(self.root)
        assert status.n_shards_done == len(self.expected)
        assert status.n_done == sum(text.count("\n") for text in self.expected.values())
        assert (status.state == "running") == bool(self.drivers)

    @invariant()
    def plan_stays_as_it_was_written(self) -> None:
        assert load_manifest(self.root) == self.manifest


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=30, stateful_step_count=40)
