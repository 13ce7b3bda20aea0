"""The plan of a run as a file: written once, read by every driver, worker and command."""

import bisect
import json
import os
import re
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from espnet3.errors import RunFolderError
from espnet3.io.atomic import create_bytes
from espnet3.io.records import (
    Count,
    DamagedFileError,
    Moment,
    PathText,
    Seconds,
    Share,
    parse_record,
    read_content,
)
from espnet3.shards.file_access import unreachable
from espnet3.shards.items import (
    START_ANEW,
    Reordered,
    Slices,
    describe_problem,
    is_long,
    load_items,
    open_items,
    reorder,
    store_items,
)
from espnet3.shards.layout import RunLayout, manifest_path
from espnet3.shards.plan import Batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from espnet3.shards.items import Items

_RUN_ID_SHAPE = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_MAX_COST = 1e30
_RUN_ID = re.compile(rb'\{\s*"run_id":\s*"([^"\\]*)"')
_ANY = cast("type[Any]", Any)
FORMAT = "espnet3-run"
VERSION = 2
"""The newest version of the format. A plan without groups is written as version 1."""
_FLAT = 1  # versions that know of no groups refuse the other one, and do not run all again


@dataclass(frozen=True)
class Manifest:
    """Plan of a run, and the settings that its results depend on.

    `fingerprint` holds every key that the results depend on; neither the number of workers nor
    the backend is among them, so both may change between two runs of one plan.
    """

    items: dict[str, Any]
    n_items: Count
    bounds: list[int]
    costs: list[float]
    batch_size: Count | None
    fingerprint: dict[str, Any]
    files: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    output_dir: PathText = "."
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: Moment = field(default_factory=time.time)
    versions: dict[str, str] = field(default_factory=dict)
    batch_seconds: Seconds | None = None
    batches: dict[str, Any] | None = None
    """Where items are sorted into batches by length: how `order` and `edges` are packed."""
    padded_share: Share | None = None
    audio_seconds: Seconds | None = None
    group_size: Count | None = None
    """Shards per sub-folder; None if they stand directly in the run folder. See `RunLayout`."""
    format: str = FORMAT
    version: int = _FLAT

    @property
    def n_shards(self) -> int:
        """Number of shards in the plan."""
        return len(self.bounds) - 1

    def problem(self) -> str:
        """Return in which way the plan makes no sense; empty if it does."""
        bounds, costs = self.bounds, self.costs
        if not bounds or bounds[0] != 0 or bounds[-1] != self.n_items:
            return f"bounds: not from 0 to n_items, {self.n_items}"
        if any(first >= last for first, last in pairwise(bounds)):
            return "bounds: not increasing"
        if len(costs) != self.n_shards:
            return f"costs: {len(costs)} for {self.n_shards} shards"
        # In this form, NaN is refused as well.
        if not all(0 <= cost <= _MAX_COST for cost in costs):
            return f"costs: not all from 0 to {_MAX_COST:g}"
        if not _RUN_ID_SHAPE.fullmatch(self.run_id):
            return f"run_id: {self.run_id!r:.60} is no id"
        if self.group_size == 0:
            return "group_size: 0 shards in a group"
        packed: dict[str, Any] = {"items": self.items}
        if self.batches is not None:
            described = {"order": None, "edges": None, **self.batches}
            packed |= {f"batches.{name}": value for name, value in described.items()}
        found = (describe_problem(value, name) for name, value in packed.items())
        return next(filter(None, found), "")

    def layout(self, root: Path) -> RunLayout:
        """Return the paths of this run under `root`."""
        return RunLayout(root, self.n_shards, self.group_size)

    def output_folder(self, root: Path) -> Path:
        """Return where the merge of the run in `root` writes: into it, or a folder above it.

        A run folder may come from someone else: its plan must not choose any place to write to.

        Raises:
            RunFolderError: if it is elsewhere.
        """
        folder = Path(os.path.normpath(root / self.output_dir))
        if not Path(os.path.abspath(root)).is_relative_to(os.path.abspath(folder)):
            raise RunFolderError(
                f"{manifest_path(root)} says that the outputs belong into {folder}, which is not "
                "above it.",
                fix="Run the same command as before again: it merges without computing "
                "anything again.",
            )
        return folder

    def open_items(self, root: Path, items: "Items | None" = None) -> Slices:
        """Return the items in the order of the plan, read from the folder a slice at a time.

        Args:
            root: the run folder.
            items: in dataset order, where they are in memory anyway.

        Raises:
            RunFolderError: if they are not there, or not those of the plan.
        """
        opened = self._open_items(root, items)
        if items is None and len(opened) != self.n_items:
            raise DamagedFileError(
                f"{manifest_path(root)} is damaged: it plans {self.n_items} items, and names "
                f"{len(opened)}. {START_ANEW}"
            )
        return opened

    def _open_items(self, root: Path, items: "Items | None") -> Slices:
        if self.batches is None:
            return open_items(root, self.items, self.n_items) if items is None else items
        if items is None and "items" in self.batches:
            return open_items(root, self.batches["items"], self.n_items)
        order = open_items(root, self.batches["order"], self.n_items)
        return Reordered(load_items(root, self.items) if items is None else items, order)

    def load_edges(self, root: Path) -> "Items | None":
        """Return the edges of the batches; None if they are all of one size."""
        if self.batches is None:
            return None
        edges = load_items(root, self.batches["edges"])
        # Bisected: a set of millions of edges would take more memory than a worker should.
        if isinstance(edges, list) or not all(_is_among(edges, bound) for bound in self.bounds):
            raise self._other_batches(root)
        return edges

    def load_order(self, root: Path) -> "Items | None":
        """Return which item is at each position of the plan; None if they are those of the dataset.

        Raises:
            DamagedFileError: if some are there twice, or not at all.
        """
        if self.batches is None:
            return None
        order = load_items(root, self.batches["order"])
        if not _is_permutation(order, self.n_items):
            raise self._other_batches(root)
        return order

    def _other_batches(self, root: Path) -> DamagedFileError:
        return DamagedFileError(
            f"{manifest_path(root)} is damaged: its batches are not those of its items. "
            f"{START_ANEW}"
        )


def publish_manifest(
    root: Path, manifest: Manifest, items: "Items", batches: Batches | None = None
) -> Manifest:
    """Write the plan, unless another driver wrote one first.

    Returns:
        The manifest that is now in the folder: the given one, or the other driver's.
    """
    # The run's id comes first: see read_run_id.
    values = {"run_id": manifest.run_id, **asdict(manifest), "items": store_items(root, items)}
    if manifest.group_size is None:
        del values["group_size"]
    else:
        values["version"] = VERSION
    if batches is not None:
        # Before the manifest that names them: a plan without its items could not be run.
        packed = {"order": store_items(root, batches.order)}
        packed["edges"] = store_items(root, batches.edges)
        if is_long(items) and not isinstance(items, range):
            # In run order once more: those of a shard lie all over the list in dataset order.
            packed["items"] = store_items(root, reorder(items, batches.order))
        values |= {"batches": packed, "padded_share": round(batches.padded_share, 6)}
    text = json.dumps(values, ensure_ascii=False, indent=1, default=str) + "\n"
    # By exclusive creation: of drivers that start at once, one writes the plan and all use it.
    # A lone surrogate becomes \udcxx here, which happens to be its escape in JSON.
    if create_bytes(manifest_path(root), text.encode("utf-8", "backslashreplace")):
        return Manifest(**values)
    other = load_manifest(root)
    if other is None:  # the other driver restarted at this very moment
        raise RunFolderError(
            f"Another driver is starting a run in {root}.", fix="Run the command again."
        )
    return other


def _is_among(values: "Sequence[int]", value: int) -> bool:
    place = bisect.bisect_left(values, value)
    return place < len(values) and values[place] == value


def _is_permutation(order: "Items", n_items: int) -> bool:
    if isinstance(order, list) or len(order) != n_items:
        return False
    if isinstance(order, range):
        return {order[0], order[-1]} == {0, n_items - 1}
    import numpy as np

    seen, positions = np.zeros(n_items, bool), np.frombuffer(order, dtype=np.int64)
    if positions.min() < 0 or positions.max() >= n_items:
        return False
    seen[positions] = True
    return bool(seen.all())


def load_manifest(root: str | os.PathLike[str]) -> Manifest | None:
    """Read the plan of the run in `root`; None if there is none.

    Raises:
        RunFolderError: if the file is damaged or was written by another version of the format.
        FileSystemError: if it cannot be read from here.
    """
    path = manifest_path(Path(root))
    try:
        content = read_content(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise RunFolderError(
            f"{root} is not a folder.", fix="Choose another output_dir."
        ) from error
    except IsADirectoryError as error:
        raise RunFolderError(f"{path} is a folder. {START_ANEW}") from error
    except OSError as error:
        raise unreachable(error, path) from error
    try:
        # Before the values: a plan of a newer format should be called that, and not damaged.
        _check_format(path, parse_record(content, _ANY, path))
        return parse_record(content, Manifest, path)
    except DamagedFileError as error:
        raise DamagedFileError(f"{error} {START_ANEW}") from None


def require_manifest(run_dir: Path) -> Manifest:
    """Return the manifest of a run folder, or say that this is none.

    Raises:
        RunFolderError: with the run folders that were found below, if any.
    """
    manifest = load_manifest(run_dir)
    if manifest is not None:
        return manifest
    below = sorted(str(path.parent) for path in run_dir.glob("*/manifest.json"))[:5]
    hint = f"Did you mean {' or '.join(below)}?" if below else "Give the output_dir of a runner."
    raise RunFolderError(f"{run_dir} holds no run: there is no manifest.json in it. {hint}")


def read_run_id(root: Path) -> str | None:
    """Return the id of the run in `root` without reading its plan, which may be long.

    Every commit asks for it, so it must not grow with the number of shards.
    """
    try:
        with manifest_path(root).open("rb") as file:
            match = _RUN_ID.match(file.read(200))
    except FileNotFoundError:
        return None
    if match and match[1].isascii():
        return match[1].decode()
    # Reformatted by hand, or damaged: finished work must not be dropped without a word.
    manifest = load_manifest(root)
    return manifest.run_id if manifest else None


def refuse_foreign(root: Path) -> None:
    """Raise if the `manifest.json` in `root` is some other program's; a damaged one is let pass."""
    path = manifest_path(root)
    with suppress(DamagedFileError):
        _check_origin(path, parse_record(read_content(path), _ANY, path))


def _check_origin(path: Path, values: Any) -> None:
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise RunFolderError(
            f"{path} was not written by ESPnet3.",
            fix="Use another output_dir, or move that file away.",
        )


def _check_format(path: Path, values: Any) -> None:
    _check_origin(path, values)
    version, versions = values.get("version"), values.get("versions")
    if version not in (_FLAT, VERSION) or isinstance(version, bool):  # True equals 1
        writer = versions.get("espnet3", "unknown") if isinstance(versions, dict) else "unknown"
        raise RunFolderError(
            f"{path} has version {version!s:.40} of the run format; this ESPnet3 reads "
            f"version {VERSION}. Finish the run with the ESPnet3 that began it "
            f"({writer!s:.40}), or start over with resume=False."
        )
