"""A run that ended while a worker was connecting printed a traceback of Tornado.

Jobs that come late are cancelled at the end, in the middle of a handshake; the listener is stopped
by then, and Dask's message about the handshake asks it for its address.
"""

import threading

import pytest
from distributed import LocalCluster

from espnet3.parallel import BaseRunner, use_parallel
from espnet3.parallel.clusters.registry import BACKENDS, register_backend
from tests.helpers.providers import Provider


class Double(BaseRunner):
    @staticmethod
    def forward(idx):
        return 2 * idx


class ClusterThatIsReached(LocalCluster):
    """Has a connection that breaks off while it is closed."""

    def close(self, *args, **kwargs):
        is_broken = threading.Event()

        def break_off():
            is_broken.set()
            raise ValueError("invalid operation on non-started TCPListener")

        self.loop.add_callback(break_off)
        assert is_broken.wait(60)
        return super().close(*args, **kwargs)


@pytest.fixture
def reached():
    register_backend(
        "reached", lambda _: ClusterThatIsReached(1, processes=False, dashboard_address=None)
    )
    yield
    del BACKENDS["reached"]


def test_a_connection_that_breaks_off_while_a_cluster_is_closed_is_no_news(reached, caplog):
    with use_parallel({"env": "reached", "n_workers": 1}):
        assert Double(Provider())(range(3)) == [0, 2, 4]
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
