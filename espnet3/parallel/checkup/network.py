"""Whether driver and workers reach each other: addresses, SSH hosts, a Dask scheduler, pods."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.findings import Finding, never_raises
from espnet3.parallel.clusters.network import find_reach, interfaces
from espnet3.parallel.clusters.table import BACKENDS, start_cluster
from espnet3.schedulers import known_scheduler

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_WHAT = "network"
_TIMEOUT = 5.0
_SSH_PORT = 22
_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@never_raises(_WHAT)
def check_network(config: "ParallelConfig") -> list[Finding]:
    """Say where workers would connect to; no packet is sent."""
    if BACKENDS[config.env].module != "jobqueue":
        return []
    chosen: dict[str, Any] = config.options.get("scheduler_options") or {}
    if chosen.get("host"):
        told = f"workers connect to {chosen['host']}, as scheduler_options.host says"
        return [Finding("ok", _WHAT, told)]
    interface = chosen.get("interface") or config.options.get("interface")
    if interface:
        return [_by_interface(str(interface))]
    reach = find_reach(known_scheduler(config.env).nodes(config.options))
    told = f"workers connect to {reach.host} ({reach.why})"
    if reach.is_known:
        return [Finding("ok", _WHAT, told)]
    fix = f"Write under options: interface: NAME, one of {_listed()}, if workers do not connect"
    return [Finding("warning", _WHAT, f"{told}, which is a guess", fix)]


def _by_interface(name: str) -> Finding:
    address = interfaces().get(name)
    if address is None:
        told = f"parallel.options.interface is {name!r}, but this machine has {_listed()}"
        fix = f"Write under options: interface: {next(iter(interfaces()), 'NAME')}"
        return Finding("problem", _WHAT, told, fix)
    return Finding("ok", _WHAT, f"workers connect to {address}, of the interface {name}")


def _listed() -> str:
    return ", ".join(f"{name} ({address})" for name, address in interfaces().items())


@never_raises("reach")
def check_reach(config: "ParallelConfig") -> list[Finding]:
    """Open a connection to each machine that the options name; nothing is started there.

    The options have been checked.
    """
    if config.env == "ssh":
        return _ssh(config)
    if config.env == "dask":
        return _dask(config)
    return _kube() if config.env == "kube" else []


def _ssh(config: "ParallelConfig") -> list[Finding]:
    hosts = config.options["hosts"]
    given: Any = config.options.get("connect_options") or {}
    options = given if isinstance(given, list) else [given] * len(hosts)
    silent = {
        host: reason
        for host, each in zip(hosts, options, strict=False)
        if (reason := _knock(str(host), int(each.get("port", _SSH_PORT))))
    }
    if not silent:
        return [Finding("ok", "hosts", f"all {len(hosts)} answer on their SSH port")]
    return [
        Finding(
            "problem", "hosts", f"{host} does not answer: {reason}", f"Mend it: ssh {host} true"
        )
        for host, reason in silent.items()
    ]


def _dask(config: "ParallelConfig") -> list[Finding]:
    address = start_cluster(config)  # which only asks whether it is there
    return [Finding("ok", "reach", f"a Dask scheduler answers at {address}")]


def _kube() -> list[Finding]:
    files = os.environ.get("KUBECONFIG", os.path.expanduser("~/.kube/config")).split(os.pathsep)
    there = [file for file in files if os.path.isfile(file)]
    if there:
        return [Finding("ok", "cluster", f"its address is in {there[0]}")]
    if _IN_POD.is_file():
        return [Finding("ok", "cluster", "this is a pod of it")]
    fix = "Put the file of your cluster there, or name it: export KUBECONFIG=FILE"
    return [Finding("problem", "cluster", f"{files[0]} does not exist", fix)]


def _knock(host: str, port: int) -> str:
    """Return why a port cannot be reached; empty if it can."""
    try:
        socket.create_connection((host, port), timeout=_TIMEOUT).close()
    except OSError as error:
        return f"port {port}: {error.strerror or error}"
    return ""
