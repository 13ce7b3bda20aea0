"""The proof that a run is complete, and what lets a finished run answer at once."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from espnet3.io.atomic import write_json
from espnet3.shards.accounting import account
from espnet3.shards.commit import Done
from espnet3.shards.layout import RunLayout
from espnet3.shards.manifest import Manifest
from espnet3.shards.usage import Accounting

_PATH = "__path__"


def write_success(
    layout: RunLayout,
    manifest: Manifest,
    shards: Iterable[Done],
    *,
    output_dir: Path,
    outputs: dict[str, tuple[int, int]],
    result: Any,
    keep_result: bool = True,
) -> None:
    """Write `_SUCCESS.json`: counts, sizes, versions, accounting, and what `merge` returned.

    A result that JSON cannot hold, or that is not to be kept, is left out; asking again then
    merges again.
    """
    done = list(shards)
    encoded = encode_result(result, output_dir) if keep_result else None
    values = {
        "run_id": manifest.run_id,
        "n_items": manifest.n_items,
        "n_failed": sum(shard.n_failed for shard in done),
        "n_shards": manifest.n_shards,
        "seconds": round(time.time() - manifest.created, 3),
        "worker_seconds": round(sum(shard.seconds for shard in done), 3),
        "load_seconds": round(sum(shard.load_seconds for shard in done), 3),
        **_speech_facts(manifest, done),
        "accounting": account(layout.root, manifest, done).as_dict(),
        "hosts": sorted({shard.host for shard in done}),
        "outputs": outputs,
        "versions": manifest.versions,
        "finished": time.time(),
        **({} if encoded is None else {"result": encoded}),
    }
    write_json(layout.success, values)


def _speech_facts(manifest: Manifest, done: list[Done]) -> dict[str, Any]:
    facts = {
        "audio_seconds": manifest.audio_seconds,
        "padded_share": manifest.padded_share,
        "n_halved": sum(shard.n_halved for shard in done) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def read_success(layout: RunLayout, run_id: str) -> dict[str, Any] | None:
    """Return the content of `_SUCCESS.json` if it is of this run."""
    try:
        values: dict[str, Any] = json.loads(layout.success.read_bytes())
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) and values.get("run_id") == run_id else None


def read_accounting(
    run_dir: Path, manifest: Manifest, committed: Iterable[Done] | None = None
) -> Accounting:
    """Return what a run cost so far; of a finished one, what `_SUCCESS.json` says."""
    success = read_success(manifest.layout(run_dir), manifest.run_id) or {}
    known = success.get("accounting")
    if isinstance(known, dict):
        return Accounting.from_dict(known)
    return account(run_dir, manifest, committed)


def has_outputs(values: dict[str, Any], folder: Path) -> bool:
    """Tell whether the merged files are still there, as large and as old as they were."""
    for name, (size, mtime) in values.get("outputs", {}).items():
        try:
            stat = (folder / name).stat()
        except OSError:
            return False
        if (stat.st_size, stat.st_mtime_ns) != (size, mtime):
            return False
    return True


def encode_result(result: Any, output_dir: Path) -> Any:
    """Return `[result]` in JSON's types, or None if decoding could not give an equal value back.

    Paths inside `output_dir` are kept relative to it: the folder may be moved.
    """
    try:
        encoded = [_encode(result, output_dir)]
        copied = json.loads(json.dumps(encoded, allow_nan=False))
        return encoded if decode_result(copied, output_dir) == result else None
    except (TypeError, ValueError, RecursionError):
        return None


def decode_result(encoded: Any, output_dir: Path) -> Any:
    """Undo `encode_result`."""
    return _decode(encoded[0], output_dir)


def _encode(value: Any, base: Path) -> Any:
    if isinstance(value, Path):
        return {_PATH: str(value.relative_to(base) if value.is_relative_to(base) else value)}
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            raise TypeError("JSON keys are strings")
        return {key: _encode(entry, base) for key, entry in value.items()}
    if isinstance(value, list):
        return [_encode(entry, base) for entry in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"{type(value).__name__} is not plain data")


def _decode(value: Any, base: Path) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_PATH}:
            return base / value[_PATH]
        return {key: _decode(entry, base) for key, entry in value.items()}
    if isinstance(value, list):
        return [_decode(entry, base) for entry in value]
    return value


def paths_in(result: Any) -> list[Path]:
    """Return the paths that a decoded result holds, at any depth."""
    if isinstance(result, dict):
        return [path for entry in result.values() for path in paths_in(entry)]
    if isinstance(result, list):
        return [path for entry in result for path in paths_in(entry)]
    return [result] if isinstance(result, Path) else []
