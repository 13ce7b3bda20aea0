"""Whether machines that are no job's can be reached: SSH hosts, a running scheduler, Kubernetes."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.findings import Finding, never_raises
from espnet3.parallel.clusters.table import start_cluster

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_TIMEOUT = 5.0
_SSH_PORT = 22
_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


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
