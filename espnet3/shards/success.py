"""`_SUCCESS.json`: marks a run as complete and stores its result."""

import json
import logging
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from espnet3.errors import IncompleteRunError
from espnet3.io.atomic import write_json
from espnet3.io.records import (
    Count,
    DamagedFileError,
    Moment,
    Seconds,
    Share,
    is_inside,
    parse_record,
    warn_once,
)
from espnet3.shards.accounting import Accounting, account
from espnet3.shards.commit import Done, read_done, walk_files
from espnet3.shards.file_access import look_time, read_file, unreachable
from espnet3.shards.layout import FAILED, RunLayout
from espnet3.shards.manifest import Manifest
from espnet3.shards.merge import check_contents, check_sizes
from espnet3.shards.pack import shards_named_in

logger = logging.getLogger(__name__)
_PATH = "__path__"
_GONE = -1


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
    done, now = list(shards), look_time(layout.root)
    encoded = encode_result(result, output_dir) if keep_result else None
    values = {
        "run_id": manifest.run_id,
        "n_items": manifest.n_items,
        "n_failed": sum(shard.n_failed for shard in done),
        "n_shards": manifest.n_shards,
        # Not below 0: plans of earlier versions have the time of the machine that made them.
        "seconds": round(max(now - manifest.created, 0.0), 3),
        "worker_seconds": round(sum(shard.seconds for shard in done), 3),
        "load_seconds": round(sum(shard.load_seconds for shard in done), 3),
        **_speech_facts(manifest, done),
        "accounting": account(layout.root, manifest, done).as_dict(),
        "hosts": sorted({shard.host for shard in done}),
        "outputs": outputs,
        **_artifacts_of(layout, done, result),
        "versions": manifest.versions,
        "finished": now,
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


@dataclass(frozen=True)
class _Success:
    """Keys of `_SUCCESS.json` that readers rely on."""

    run_id: str
    n_failed: Count = 0
    seconds: Seconds = 0.0
    worker_seconds: Seconds = 0.0
    load_seconds: Seconds = 0.0
    hosts: list[str] = field(default_factory=list)
    finished: Moment = 0.0
    outputs: dict[str, tuple[int, int]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    audio_seconds: Seconds | None = None
    padded_share: Share | None = None
    n_halved: Count | None = None
    accounting: dict[str, Any] | None = None
    artifacts: dict[int, tuple[int, bool]] = field(default_factory=dict)
    result: list[Any] | None = None

    def problem(self) -> str:
        """Return in which way it makes no sense; empty if it does."""
        if self.result is not None and len(self.result) != 1:
            return f"result: {self.result!r:.60} is not a list of one value"
        odd = next((name for name in self.outputs if not is_inside(name)), None)
        return "" if odd is None else f"outputs: {odd!r:.60} is no file of the folder"


def read_success(layout: RunLayout, run_id: str) -> dict[str, Any] | None:
    """Return the content of `_SUCCESS.json` if it is of this run.

    One that is damaged proves nothing: a warning names it, and the run counts as not merged.

    Raises:
        FileSystemError: It cannot be read from here.
    """
    try:
        content = read_file(layout.success)
        if content is None:
            return None
        success = parse_record(content, _Success, layout.success)
        if success.accounting is not None:
            Accounting.from_dict(success.accounting, layout.success)
    except (DamagedFileError, IsADirectoryError) as error:
        warn_once(f"{error} So the run counts as not merged.")
        return None
    if success.run_id != run_id:
        return None
    # As it stands in the file: keys that a newer version added are dropped by `_Success`.
    values: dict[str, Any] = json.loads(content)
    # What readers rely on is there, also in a file that says less.
    known = {name: value for name, value in asdict(success).items() if value is not None}
    return {**known, **values}


def read_accounting(
    run_dir: Path, manifest: Manifest, committed: Iterable[Done] | None = None
) -> Accounting:
    """Return what a run cost so far; of a finished one, what `_SUCCESS.json` says."""
    layout = manifest.layout(run_dir)
    known = (read_success(layout, manifest.run_id) or {}).get("accounting")
    if known is not None:
        return Accounting.from_dict(known, layout.success)
    return account(run_dir, manifest, committed)


def has_outputs(values: dict[str, Any], folder: Path) -> bool:
    """Tell whether the merged files are still there, as large and as old as they were.

    Raises:
        FileSystemError: unknown from this node.
    """
    for name, (size, mtime) in values.get("outputs", {}).items():
        stat = _stat(folder / name)
        if stat is None or (stat.st_size, stat.st_mtime_ns) != (size, mtime):
            return False
    return True


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreachable(error, path) from error


def _artifacts_of(
    layout: RunLayout, shards: Iterable[Done], result: Any
) -> dict[str, dict[int, tuple[int, bool]]]:
    """Return, for each shard of which more than lines to join is left, a digest of its files.

    Also whether the run needs them: those in subfolders, or in a folder that `merge` returned, are
    results; others may be removed with their shard. The digest is taken behind the merge. What
    that moved or removed is its own affair.
    """
    returned = _paths_returned(result, layout)
    artifacts = {}
    for done in shards:
        folder = layout.shard(done.shard)
        is_needed = any(name.endswith("/") for name in done.files)
        is_needed = is_needed or _is_in(layout, done.shard, returned)
        if is_needed or not _is_joined(done):
            with suppress(IncompleteRunError):
                check_sizes(folder, done)
                artifacts[done.shard] = (_digest(folder), is_needed)
    return {"artifacts": artifacts} if artifacts else {}


def _paths_returned(result: Any, layout: RunLayout) -> set[str]:
    """Return the places in the run folder that a result points to, or into."""
    root, depth = layout.root, 2 if layout.n_groups else 1
    inside = (path.relative_to(root) for path in paths_in(result) if path.is_relative_to(root))
    return {"/".join(path.parts[:depth]) for path in inside if path.parts}


def _is_in(layout: RunLayout, shard: int, places: set[str]) -> bool:
    """Tell whether a shard, or its group, is one of these places."""
    path = layout.relative_path(shard)
    return path in places or os.path.dirname(path) in places


def _is_joined(done: Done) -> bool:
    """Tell whether all that a shard holds is lines for its items, as `merge` joins them."""
    items = [entry for name, entry in done.files.items() if name != FAILED]
    return all(entry["lines"] == done.n_written for entry in items)


def shards_in_use(
    values: dict[str, Any], layout: RunLayout, output_dir: Path, shards: Iterable[Done]
) -> set[int]:
    """Return the shards whose folders a merged run needs: results lie there, or may."""
    try:
        result = decode_result(values["result"], output_dir)
    except (KeyError, IndexError, TypeError):
        result = None
    returned = _paths_returned(result, layout)
    used = shards_named_in(output_dir / name for name in values.get("outputs", {}))
    for done in shards:
        has_folder = any(name.endswith("/") for name in done.files)
        if has_folder or not _is_joined(done) or _is_in(layout, done.shard, returned):
            used.add(done.shard)
    return used


def _digest(shard_dir: Path) -> int:
    """Return a checksum of names, sizes and times of all files of a shard, without reading one."""
    digest = 0
    start = len(os.fspath(shard_dir))
    try:
        for path in walk_files(shard_dir):
            stat, name = path.stat(), os.fspath(path)[start:]
            # Also the time of the change of the inode: `cp -p` and `rsync -t` keep the other one.
            facts = f"{name}\0{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}\n"
            digest = zlib.crc32(os.fsencode(facts), digest)
    except (FileNotFoundError, NotADirectoryError):
        return _GONE
    except OSError as error:
        raise unreachable(error, error.filename or shard_dir) from error
    return digest


def known_result(values: dict[str, Any], layout: RunLayout, output_dir: Path) -> tuple[Any] | None:
    """Return what `merge` returned, in a tuple, if that is known and all it left is as it was.

    Raises:
        FileSystemError: unknown from this node.
    """
    try:
        result = decode_result(values["result"], output_dir)
    except (KeyError, IndexError, TypeError):  # not noted, or not by us
        return None
    if not has_outputs(values, output_dir) or None in map(_stat, paths_in(result)):
        return None
    return (result,) if has_artifacts(values, layout) else None


def has_artifacts(values: dict[str, Any], layout: RunLayout) -> bool:
    """Tell whether what is left in the shards, beside lines that were joined, is as it was.

    Names, sizes and times are compared; where they differ, as in a copy of the folder, contents.

    Raises:
        FileSystemError: unknown from this node.
    """
    # JSON made text of the keys.
    known = {int(shard): value for shard, value in values.get("artifacts", {}).items()}
    now = {shard: _digest(layout.shard(shard)) for shard in known}
    needed = {shard for shard, (_, is_needed) in known.items() if is_needed or now[shard] != _GONE}
    changed = sorted(shard for shard in needed if now[shard] != known[shard][0])
    if not changed:
        return True
    found = [(layout.shard(shard), read_done(layout.shard(shard))) for shard in changed]
    try:
        for folder, done in found:
            if done is None:
                raise IncompleteRunError(f"{folder} is gone or damaged since.")
        check_contents([(folder, done) for folder, done in found if done is not None])
    except IncompleteRunError as error:
        logger.warning("The run is merged, but %s", error)
        return False
    artifacts = {shard: (now[shard], known[shard][1]) for shard in known}
    with suppress(OSError):  # it is only read again next time
        write_json(layout.success, {**values, "artifacts": artifacts})
    return True


def encode_result(result: Any, output_dir: Path) -> Any:
    """Return `[result]` in JSON's types, or None if decoding could not give an equal value back.

    Paths inside `output_dir` are kept relative to it: the folder may be moved.
    """
    try:
        # In a list, so that a result of None differs from no result.
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
        # JSON would turn the key 1 into "1", and the result would come back changed.
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
        if value.keys() == {_PATH} and isinstance(value[_PATH], str):
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
