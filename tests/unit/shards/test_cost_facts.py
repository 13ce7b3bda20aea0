from espnet3.shards.accounting import Accounting, Usage, add_up, cost_facts, time_parts

BUSY = Usage("a:1", host="a", seconds=3600.0, compute_seconds=2700.0, load_seconds=360.0)
WAITED = Usage("b:2", host="b", seconds=3600.0, compute_seconds=3600.0, queue_seconds=120.0)


def facts(*workers, **values):
    nodes = [add_up(name, [w]) for name, w in zip("ab", workers, strict=False)]
    return dict(cost_facts(Accounting(add_up("", workers), nodes, list(workers), **values)))


def test_where_the_time_of_the_workers_went():
    assert facts(BUSY, WAITED) == {
        "Worker time": "2 h 00 min of 2 workers on 2 nodes: compute 88%, load 5%, idle 8%"
    }


def test_one_worker_is_not_workers():
    assert facts(WAITED)["Worker time"] == "1 h 00 min of 1 worker on 1 node: compute 100%"


def test_the_wait_is_of_those_of_whom_it_is_known():
    found = facts(BUSY, WAITED, n_queued=1, longest_queue_seconds=120.0)
    assert found["Queue wait"] == "2 min on average of 1 worker, 2 min at most"


def test_audio_padding_and_deaths_are_told_where_there_are_any():
    spoken = Usage("a:1", seconds=10.0, compute_seconds=5.0, audio_seconds=100.0)
    found = facts(spoken, padded_share=0.0234, deaths={"died": 2, "walltime": 1})
    assert found["Speech"] == "1 min 40 s of audio, real-time factor 0.05"
    assert found["Padding"] == "2.3% of the batches"
    assert found["Lost attempts"] == "2 whose worker died, 1 cut off by a walltime"


def test_nothing_is_said_of_a_run_in_which_nobody_worked():
    assert facts() == {}


def test_parts_add_up_to_all():
    assert sum(time_parts(BUSY).values()) == 1
    assert sum(time_parts(Usage("a:1")).values()) == 0
