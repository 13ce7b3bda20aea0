"""The dispatcher's decisions, with workers that do as the test says."""

from dataclasses import replace
from pathlib import Path

import pytest

from espnet3.errors import ItemError, ProviderError, WorkerError
from espnet3.parallel.dispatch import Dispatcher
from espnet3.parallel.driver import MemorySource
from espnet3.parallel.faults import Death, FaultPolicy
from espnet3.parallel.tasks import Died, Failure, Finished, ShardAttempt, ShardResult, Stopped
from espnet3.shards.commit import Position


class ScriptedPool:
    """Workers that run a task when polled, as `behave(worker, task)` says."""

    def __init__(self, workers, behave):
        self.workers = list(workers)
        self.behave = behave
        self.running = {}
        self.log = []

    def idle(self):
        return [worker for worker in self.workers if worker not in self.running]

    def submit(self, worker, task):
        assert worker not in self.running
        self.running[worker] = task
        self.log.append((worker, task.shard))

    def poll(self, timeout):
        if not self.running:
            return []
        worker, task = next(iter(self.running.items()))
        del self.running[worker]
        outcome = self.behave(worker, task)
        if isinstance(outcome, Died):
            return [replace(outcome, worker=worker)]
        return [Finished(worker, outcome)]

    def expect(self, n_left):
        self.n_left = n_left

    def waiting(self):
        return ""

    def positions(self):
        return {}

    def kill(self, worker, reason):
        raise AssertionError("nothing hangs here")

    def stop(self):
        self.running.clear()


def succeed(worker, task):
    values = [(task.start + offset, item) for offset, item in enumerate(task.items)]
    failures = list(task.skip.values())
    return ShardResult(task, [(p, v) for p, v in values if p not in task.skip], failures)


def die_at(task, start, length=1):
    """Leave a position behind, as a killed worker does."""
    position = Position(Path(task.attempt))
    position.cells[1], position.cells[0] = length, start
    position.close()
    return Died("w", task, "it was ended by SIGKILL")


def tasks(*sizes):
    start, result = 0, []
    for shard, size in enumerate(sizes):
        result.append(ShardAttempt(shard, start, list(range(start, start + size))))
        start += size
    return result


def run(pool, source, policy=None):
    results = {}
    dispatcher = Dispatcher(
        source, pool, policy or FaultPolicy(), lambda r: results.update(dict(r.results or []))
    )
    try:
        dispatcher.run()
    finally:
        source.close()
    return results, dispatcher


def test_every_item_is_done_once_and_shards_go_out_in_the_given_order():
    pool = ScriptedPool(["a", "b"], succeed)
    results, dispatcher = run(pool, MemorySource(tasks(3, 2, 2), scratch=True))
    assert results == {i: i for i in range(7)}
    assert [shard for _, shard in pool.log] == [0, 1, 2]
    assert dispatcher.n_items_done() == 7


def test_a_shard_whose_worker_died_runs_again_with_a_folder_of_its_own():
    folders = []

    def behave(worker, task):
        folders.append(task.attempt)
        return die_at(task, 1) if len(folders) == 1 else succeed(worker, task)

    results, _ = run(ScriptedPool(["a"], behave), MemorySource(tasks(3), scratch=True))
    assert results == {0: 0, 1: 1, 2: 2}
    assert len(set(folders)) == 2


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_killing_item_is_given_up_after_the_retries(retries):
    deaths = []

    def behave(worker, task):
        if 4 not in task.skip and task.start <= 4 < task.stop:
            deaths.append(task)
            return die_at(task, 4)
        return succeed(worker, task)

    policy = FaultPolicy(skip_errors=True, retries=retries)
    results, dispatcher = run(
        ScriptedPool(["a"], behave), MemorySource(tasks(3, 3), scratch=True), policy
    )
    assert len(deaths) == retries + 1
    assert sorted(results) == [0, 1, 2, 3, 5]
    assert [failure.index for failure in dispatcher.failures] == [4]


def test_a_killing_batch_is_halved_until_the_item_is_alone():
    tried = []

    def behave(worker, task):
        if 5 in task.skip:
            return succeed(worker, task)
        edges = sorted({0, 8, *task.cuts})
        start = max(edge for edge in edges if edge <= 5)
        stop = min(edge for edge in edges if edge > 5)
        tried.append((start, stop))
        return die_at(task, start, stop - start)

    policy = FaultPolicy(skip_errors=True, retries=1)
    results, _ = run(ScriptedPool(["a"], behave), MemorySource(tasks(8), scratch=True), policy)
    assert tried == [(0, 8), (0, 8), (4, 8), (4, 6), (5, 6)]
    assert sorted(results) == [0, 1, 2, 3, 4, 6, 7]


def test_without_a_position_the_task_itself_is_halved():
    def behave(worker, task):
        if 5 in task.items and 5 not in task.skip:
            return Died(worker, task, "it left the cluster")
        return succeed(worker, task)

    policy = FaultPolicy(skip_errors=True, retries=0)
    results, dispatcher = run(
        ScriptedPool(["a"], behave), MemorySource(tasks(8), scratch=False), policy
    )
    assert sorted(results) == [0, 1, 2, 3, 4, 6, 7]
    assert [failure.index for failure in dispatcher.failures] == [5]


def test_workers_that_die_before_their_first_item_stop_the_run():
    pool = ScriptedPool(
        ["a", "b"], lambda worker, task: Died(worker, task, "it exited with code 1")
    )
    with pytest.raises(WorkerError, match=r"died before their first item.*n_workers: 1"):
        run(pool, MemorySource(tasks(3, 3, 3), scratch=True))


def test_a_shard_that_loses_its_workers_at_ever_other_items_stops_the_run():
    seen = []

    def behave(worker, task):
        seen.append(None)
        return die_at(task, len(seen) % 100)

    with pytest.raises(WorkerError, match="shards_per_worker: 64"):
        run(ScriptedPool(["a"], behave), MemorySource(tasks(100), scratch=True))


def test_no_worker_in_time_stops_the_run():
    pool = ScriptedPool([], succeed)
    with pytest.raises(WorkerError, match=r"parallel\.start_timeout"):
        run(pool, MemorySource(tasks(1), scratch=True), FaultPolicy(start_timeout=0.0))


def failure_at(task, offset=0):
    return Failure(task.start + offset, task.items[offset], task.shard, "ValueError: bad", "trace")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("item", ItemError),
        ("provider", ProviderError),
        ("load", ProviderError),
        ("write", ItemError),
    ],
)
def test_what_stopped_an_attempt_stops_the_run(kind, error):
    def behave(worker, task):
        return ShardResult(task, stopped=Stopped(kind, failure_at(task)))

    with pytest.raises(error, match="ValueError: bad"):
        run(ScriptedPool(["a"], behave), MemorySource(tasks(2), scratch=True))


def test_a_record_that_cannot_be_written_is_skipped_by_running_the_shard_without_it():
    def behave(worker, task):
        if task.skip:
            return succeed(worker, task)
        return ShardResult(task, stopped=Stopped("write", failure_at(task, 1)))

    policy = FaultPolicy(skip_errors=True)
    results, _ = run(ScriptedPool(["a"], behave), MemorySource(tasks(3), scratch=True), policy)
    assert sorted(results) == [0, 2]


def test_the_same_failure_told_twice_counts_once():
    def behave(worker, task):
        if task.skip:
            return replace(succeed(worker, task), failures=[failure_at(task, 1)])
        return ShardResult(task, stopped=Stopped("write", failure_at(task, 1)))

    policy = FaultPolicy(skip_errors=True, max_errors=1)
    _, dispatcher = run(ScriptedPool(["a"], behave), MemorySource(tasks(3), scratch=True), policy)
    assert len(dispatcher.failures) == 1


def test_an_attempt_that_another_driver_took_away_runs_again():
    tried = []

    def behave(worker, task):
        tried.append(task)
        if len(tried) == 1:
            return ShardResult(task, stopped=Stopped("lost", failure_at(task)))
        return succeed(worker, task)

    results, _ = run(ScriptedPool(["a"], behave), MemorySource(tasks(3), scratch=True))
    assert sorted(results) == [0, 1, 2]


def test_workers_that_leave_together_are_no_sign_that_none_can_start():
    deaths = []

    def behave(worker, task):
        if len(deaths) < 6:
            deaths.append(worker)
            return Died(worker, task, "it left", went_with_others=len(deaths) % 3 != 1)
        return succeed(worker, task)

    results, _ = run(
        ScriptedPool(["a", "b", "c"], behave), MemorySource(tasks(1, 1, 1), scratch=True)
    )
    assert results == {0: 0, 1: 1, 2: 2}


def test_an_attempt_that_waited_behind_a_dying_one_is_run_again_without_blame():
    n_deaths = []

    def behave(worker, task):
        if task.shard == 1 and len(n_deaths) < 5:
            n_deaths.append(task.n_deaths)
            return Died(worker, task, "it left the cluster", was_running=False)
        return succeed(worker, task)

    pool = ScriptedPool(["a"], behave)
    results, _ = run(pool, MemorySource(tasks(2, 2, 2), scratch=True), FaultPolicy(retries=0))
    assert sorted(results) == list(range(6))
    assert n_deaths == [0] * 5


def test_an_attempt_whose_worker_was_cut_off_is_run_again_without_blame():
    """Such as while the API server that forwards a port is restarted: the worker itself is well."""
    n_deaths = []

    def behave(worker, task):
        if task.shard == 1 and len(n_deaths) < 5:
            n_deaths.append(task.n_deaths)
            return replace(die_at(task, task.start), worker=worker, was_disconnected=True)
        return succeed(worker, task)

    pool = ScriptedPool(["a"], behave)
    results, _ = run(pool, MemorySource(tasks(2, 2, 2), scratch=True), FaultPolicy(retries=0))
    assert sorted(results) == list(range(6))
    assert n_deaths == [0] * 5


class SharedSource(MemorySource):
    """Knows of deaths at other drivers' workers, and is told of ours."""

    def __init__(self, *args, known=(), leaves=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.known, self.noted, self.leaves, self.left = list(known), [], leaves, []

    def deaths(self, task):
        return self.known

    def died(self, task, death):
        self.noted.append((task.shard, death.position, death.reason))
        return self.leaves

    def leave_to_others(self, task, trouble):
        self.left.append(trouble.error)
        return self.leaves


def test_deaths_elsewhere_count_as_if_they_had_happened_here():
    known = [Death("it was killed", (4, 5), host="b")] * 2
    source = SharedSource(tasks(8), scratch=True, known=known)
    results, dispatcher = run(
        ScriptedPool(["a"], succeed), source, FaultPolicy(skip_errors=True, retries=1)
    )
    assert sorted(results) == [0, 1, 2, 3, 5, 6, 7]
    (failure,) = dispatcher.failures
    assert (failure.index, failure.host) == (4, "b")
    assert "2 times: it was killed" in failure.error


def test_halving_goes_on_where_others_left_off():
    tried = []

    def behave(worker, task):
        tried.append(task.cuts)
        return succeed(worker, task)

    known = [Death("killed", (0, 8))] * 2 + [Death("killed", (4, 8))]
    source = SharedSource(tasks(8), scratch=True, known=known)
    run(ScriptedPool(["a"], behave), source, FaultPolicy(skip_errors=True, retries=1))
    assert tried == [(0, 4, 8, 4, 6, 8)]


def test_an_item_that_others_found_to_kill_stops_a_run_that_skips_nothing():
    source = SharedSource(tasks(8), scratch=True, known=[Death("killed", (4, 5))] * 2)
    with pytest.raises(ItemError, match=r"Item 4 .*on_error to skip"):
        run(ScriptedPool(["a"], succeed), source, FaultPolicy(retries=1))


def test_a_source_is_told_where_our_worker_died():
    def behave(worker, task):
        return die_at(task, 2) if not source.noted else succeed(worker, task)

    source = SharedSource(tasks(3), scratch=True)
    run(ScriptedPool(["a"], behave), source)
    assert source.noted == [(0, (2, 3), "it was ended by SIGKILL")]


def test_a_shard_at_which_a_worker_died_may_be_left_to_others():
    source = SharedSource(tasks(3, 3), scratch=True, leaves=True)

    def behave(worker, task):
        return die_at(task, 1) if task.shard == 0 else succeed(worker, task)

    results, _ = run(ScriptedPool(["a"], behave), source)
    assert results == {3: 3, 4: 4, 5: 5}
    assert len(source.noted) == 1


def full_disk(task):
    return ShardResult(task, stopped=Stopped("machine", failure_at(task)))


def test_trouble_of_the_machine_is_tried_again_before_the_item_is_blamed():
    blamed = []

    def behave(worker, task):
        blamed.append(task.blames_item)
        return succeed(worker, task) if task.blames_item else full_disk(task)

    run(ScriptedPool(["a"], behave), MemorySource(tasks(3), scratch=True), FaultPolicy(retries=2))
    assert blamed == [False, False, True]


def test_a_shard_in_trouble_may_be_left_to_others():
    source = SharedSource(tasks(3), scratch=True, leaves=True)
    results, _ = run(ScriptedPool(["a"], lambda worker, task: full_disk(task)), source)
    assert results == {}
    assert source.left == ["ValueError: bad"]


def test_something_else_may_end_the_run_at_any_turn():
    def end():
        raise KeyError("enough")

    source = MemorySource(tasks(3), scratch=True)
    dispatcher = Dispatcher(source, ScriptedPool(["a"], succeed), FaultPolicy(), on_turn=end)
    with pytest.raises(KeyError, match="enough"):
        dispatcher.run()
    source.close()
