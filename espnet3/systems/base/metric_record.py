"""Record of the inputs of `metrics.json`, to detect stale numbers."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from espnet3.config.fingerprint import file_identity, same_file

MEASURED_FROM = "measured_from"
"""The key beside the numbers of a test set."""

_IDENTITY = ("path", "size", "mtime_ns", "sha256")


def identify(path: Path, base: Path) -> dict[str, Any]:
    """Return path, size, time and digest of a file.

    Below `base` the path is relative to it: the folder may be moved.
    """
    inside = path.absolute().is_relative_to(base.absolute())
    shown = path.absolute().relative_to(base.absolute()) if inside else path.absolute()
    return {"path": str(shown), **file_identity(path)}


def stale_inputs(metrics_json: Path) -> list[str]:
    """Return a line for each file that changed or went since `metrics.json` was computed from it.

    An empty list means that the numbers are those of the files as they are now.
    """
    results = json.loads(metrics_json.read_bytes())
    base, changed = metrics_json.parent, dict[str, str]()
    for identity in _identities(results):
        path = base / identity["path"]
        if not path.is_file():
            changed[str(path)] = f"{path} is gone"
        elif not same_file(identity, path):
            changed[str(path)] = f"{path} has other content"
    return list(changed.values())


def _identities(values: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(values, Mapping):
        if all(key in values for key in _IDENTITY):
            yield values
        for value in values.values():
            yield from _identities(value)
    elif isinstance(values, list):
        for value in values:
            yield from _identities(value)
