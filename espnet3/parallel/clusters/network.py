"""Find the address at which the nodes of a cluster reach this machine."""

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_ANY_PORT = 9
_N_NODES = 8
"""Enough to see how nodes are reached; each name that cannot be resolved may take seconds."""
_OUTSIDE = "192.0.2.1"
"""An address of no machine (RFC 5737), towards which the default route leads."""


@dataclass(frozen=True)
class Reach:
    """An address to listen on, and what is known of it."""

    host: str
    why: str
    is_known: bool
    """Whether nodes were found behind it; else it is a guess."""


def find_reach(nodes: Sequence[str]) -> Reach:
    """Return the address that nodes reach, from which they would be reached.

    No packet is sent: the routes of this machine tell.
    """
    addresses: Counter[str] = Counter()
    example: dict[str, str] = {}
    problem = "the scheduler does not tell its nodes"
    for node in nodes[:_N_NODES]:
        try:
            address = local_address_towards(node)
        except OSError as error:
            problem = f"node {node} is not found from here: {error.strerror or error}"
            continue
        addresses[address] += 1
        example.setdefault(address, node)
    if not addresses:
        return Reach(_default_address(), problem, is_known=False)
    # A machine's own name often means loopback, also where the other nodes are elsewhere.
    outside = Counter({a: n for a, n in addresses.items() if not _is_loopback(a)})
    if not outside:
        return Reach("127.0.0.1", "all nodes are this machine", is_known=True)
    host = outside.most_common(1)[0][0]
    return Reach(host, f"the way to {example[host]}", is_known=True)


def local_address_towards(node: str) -> str:
    """Return the address of this machine that a node by this name or address sees.

    Raises:
        OSError: if the name cannot be resolved or there is no way to it.
    """
    found = socket.getaddrinfo(node, _ANY_PORT, socket.AF_INET, socket.SOCK_DGRAM)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(found[0][4])
        address: str = probe.getsockname()[0]
    return address


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of each network interface of this machine."""
    import psutil

    return {
        name: each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET
    }


def describe_interfaces() -> str:
    """Return names and addresses of the interfaces, for messages."""
    return ", ".join(f"{name} ({address})" for name, address in interfaces().items())


def _default_address() -> str:
    try:
        return local_address_towards(_OUTSIDE)
    except OSError:  # no way out, as on many clusters; but perhaps one network inside
        return next((each for each in interfaces().values() if not _is_loopback(each)), "127.0.0.1")


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")
