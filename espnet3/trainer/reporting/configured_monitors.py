"""Which metrics a training config goes by, and where it names them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espnet3.config.resolve import resolved
from espnet3.trainer.checkpointing.best_checkpoints import KEY as CRITERIA
from espnet3.trainer.checkpointing.best_checkpoints import parse_criteria
from espnet3.trainer.reporting.monitors import Monitor

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


def configured_monitors(loaded: "LoadedConfig") -> list[Monitor]:
    """Return the metrics of best checkpoints, schedulers and the user's callbacks."""
    values = resolved(loaded.config, loaded=loaded)
    monitors = [
        Monitor(c.monitor, f"{CRITERIA}.{i}", f"{CRITERIA}: [[{{}}, {c.k}, {c.mode}]]")
        for i, c in enumerate(parse_criteria(values.get(CRITERIA), loaded))
    ]
    if values.get("scheduler_monitor"):
        monitors.append(_monitor(values["scheduler_monitor"], "scheduler_monitor"))
    for name, entry in (values.get("schedulers") or {}).items():
        if entry.get("monitor"):
            monitors.append(_monitor(entry["monitor"], f"schedulers.{name}.monitor"))
    return [*monitors, *_of_callbacks((values.get("trainer") or {}).get("callbacks"))]


def _of_callbacks(nodes: Any) -> list[Monitor]:
    listed = nodes if isinstance(nodes, list) else [nodes]
    return [
        _monitor(node["monitor"], f"trainer.callbacks.{i}.monitor")
        for i, node in enumerate(listed)
        if isinstance(node, Mapping) and isinstance(node.get("monitor"), str)
    ]


def _monitor(name: str, key: str) -> Monitor:
    return Monitor(name, key, f"{key.rpartition('.')[2]}: {{}}")
