"""What ranks tell each other, through a real store."""

import os
import socket
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from espnet3.trainer.ranks.rank_link import LEFT, RankFailure, connect, outlives_rank_0
from tests.helpers.waiting import wait_until

FAILURE = RankFailure(1, 'a "host"', 7, "failed with Ärger.", "Traceback\nlast line")


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5), wait_for_workers=False)


def environ(server, **more) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port), **more}


@pytest.fixture
def join(server):
    stores = []

    def make(**more):
        stores.append(connect(environ(server, **more)))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_the_first_failure_counts(join):
    one, two = join(), join()
    assert two.failure() is None
    assert one.post(FAILURE)
    assert not two.post(RankFailure(2, "b", 8, "failed as well."))
    assert one.failure() == two.failure() == FAILURE
    assert one.n_acknowledged() == 0
    two.acknowledge()
    assert one.n_acknowledged() == 1


def test_heartbeats(join):
    one, two = join(), join()
    assert one.beats([1, 2]) == {1: b"", 2: b""}
    two.beat(2, b"5")
    wait_until(lambda: one.beats([1, 2]) == {1: b"", 2: b"5"})
    two.beat(2, LEFT)
    two.beat(1, b"1")
    wait_until(lambda: one.beats([1, 2]) == {1: b"1", 2: LEFT})
    assert one.beats([]) == {}


def test_where_a_rank_is(join):
    one, two = join(), join()
    assert one.place(1) == ("unknown host", 0)
    two.introduce(1)
    wait_until(lambda: one.place(1) == (socket.gethostname(), os.getpid()))


def test_a_suspicion_is_known_to_all(join):
    one, two = join(), join()
    assert not one.is_suspicious()
    two.suspect()
    wait_until(one.is_suspicious)


def test_workers_that_torchrun_starts_again_hear_nothing_of_the_first_attempt(join):
    first, second = join(), join(TORCHELASTIC_RESTART_COUNT="1")
    first.post(FAILURE)
    assert second.failure() is None


def test_the_end_of_the_server_is_seen_at_once_and_in_silence(capfd):
    server = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5), wait_for_workers=False)
    store = connect(environ(server))
    assert not store.is_gone(0.01)
    del server
    assert store.is_gone(10.0)
    store.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "environ",
    [{}, {"MASTER_ADDR": "127.0.0.1"}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}],
)
def test_no_server_no_connection(environ):
    assert connect(environ) is None


def test_torchrun_keeps_the_store_itself():
    assert outlives_rank_0({"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert not outlives_rank_0({})
