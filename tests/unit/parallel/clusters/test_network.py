"""Addresses at which nodes reach the driver."""

import socket

import pytest

from espnet3.parallel.clusters import job_options
from espnet3.parallel.clusters.job_options import find_reach, interfaces, local_address_towards


def test_nodes_on_loopback_are_reached_there():
    reach = find_reach(["127.0.0.1", "127.0.10.2", "localhost"])
    assert (reach.host, reach.is_known) == ("127.0.0.1", True)


def test_the_way_to_a_node_is_that_of_the_routes():
    address = next((a for name, a in interfaces().items() if name != "lo"), None)
    if address is None:
        pytest.skip("this machine has no network but loopback")
    assert local_address_towards(address) == address
    # This machine's own name means loopback; the other nodes are elsewhere.
    reach = find_reach(["127.0.1.1", address])
    assert (reach.host, reach.is_known) == (address, True)
    assert reach.why == f"the way to {address}"


def test_no_nodes_give_a_guess_and_the_reason():
    reach = find_reach([])
    assert not reach.is_known
    assert reach.host in interfaces().values()
    assert "does not tell its nodes" in reach.why


def test_a_name_that_nobody_knows_is_the_reason():
    reach = find_reach(["node.invalid"])
    assert not reach.is_known
    assert reach.why.startswith("node node.invalid is not found from here: ")


def test_few_names_are_looked_up(monkeypatch):
    asked = []

    def fail(node):
        asked.append(node)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(job_options, "local_address_towards", fail)
    find_reach([f"node{i}" for i in range(1000)])
    assert len(asked) < 20
