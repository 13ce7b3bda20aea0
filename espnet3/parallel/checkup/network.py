"""At which address nodes would reach the driver, and how that is known."""

from typing import TYPE_CHECKING, Any

from espnet3.findings import Finding, never_raises
from espnet3.parallel.clusters.network import find_reach, interfaces
from espnet3.parallel.clusters.table import BACKENDS
from espnet3.schedulers import scheduler_of

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_WHAT = "network"


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
    scheduler = scheduler_of(config.env)
    reach = find_reach(scheduler.nodes(config.options) if scheduler else [])
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
