"""Starts that may hang."""

import threading

import pytest

from espnet3.errors import ResourceError
from espnet3.parallel.clusters.registry import start_within
from tests.helpers.waiting import wait_until


class Cluster:
    def __init__(self):
        self.is_closed = False

    def close(self):
        self.is_closed = True


def test_what_is_started_or_raised_is_handed_on():
    cluster = Cluster()
    assert start_within(60, lambda: cluster) is cluster
    assert not cluster.is_closed

    def refuse():
        raise KeyError("no room")

    with pytest.raises(KeyError, match="no room"):
        start_within(60, refuse)


def test_a_start_that_hangs_ends_with_the_hint_and_closes_what_comes_late():
    cluster, gate = Cluster(), threading.Event()

    def start():
        gate.wait()
        return cluster

    with pytest.raises(ResourceError, match=r"start_timeout, 0\.5 s\. Look at the pods"):
        start_within(0.5, start, hint=lambda: "Look at the pods")
    gate.set()
    wait_until(lambda: cluster.is_closed, 60)


def test_who_watches_can_end_the_wait():
    cluster, gate = Cluster(), threading.Event()

    def start():
        gate.wait()
        return cluster

    def watch():
        raise ResourceError("the image is not there")

    with pytest.raises(ResourceError, match="image is not there"):
        start_within(600, start, watch)
    gate.set()
    wait_until(lambda: cluster.is_closed, 60)
