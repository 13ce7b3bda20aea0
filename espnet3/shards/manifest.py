"""The plan of a run as a file: written once, read by every driver, worker and command."""

import json
import os
import re
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import RunFolderError
from espnet3.io.atomic import write_bytes
from espnet3.io.exclusive import create_bytes
from espnet3.shards.batches import Batches
from espnet3.shards.items import pack_items, unpack_items
from espnet3.shards.layout import RunLayout, items_path, manifest_path

if TYPE_CHECKING:
    from espnet3.shards.items import Items

_RUN_ID = re.compile(rb'\{\s*"run_id":\s*"([^"\\]*)"')
FORMAT = "espnet3-run"
VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """What a run consists of and what its results depend on.

    `fingerprint` holds every key that the results depend on; neither the number of workers nor
    the backend is among them, so both may change between two runs of one plan.
    """

    items: dict[str, Any]
    n_items: int
    bounds: list[int]
    costs: list[float]
    batch_size: int | None
    fingerprint: dict[str, Any]
    files: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    output_dir: str = "."
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: float = field(default_factory=time.time)
    versions: dict[str, str] = field(default_factory=dict)
    batch_seconds: float | None = None
    batches: dict[str, Any] | None = None
    """Where items are sorted into batches by length: how `order` and `edges` are packed."""
    padded_share: float | None = None
    audio_seconds: float | None = None
    format: str = FORMAT
    version: int = VERSION

    @property
    def n_shards(self) -> int:
        """Number of shards in the plan."""
        return len(self.bounds) - 1

    def layout(self, root: Path) -> RunLayout:
        """Return the paths of this run under `root`."""
        return RunLayout(root, self.n_shards)

    def load_items(self, root: Path) -> "Items":
        """Return the items of the run in dataset order, from the file beside it if need be."""
        return _load(root, self.items)

    def load_batches(self, root: Path) -> "tuple[Items, Items] | None":
        """Return which item is at each position of the plan, and the edges of the batches.

        None if positions are those of the dataset, and batches all of one size.
        """
        if self.batches is None:
            return None
        return _load(root, self.batches["order"]), _load(root, self.batches["edges"])


def publish_manifest(
    root: Path, manifest: Manifest, items: "Items", batches: Batches | None = None
) -> Manifest:
    """Write the plan, unless another driver wrote one first.

    Returns:
        The manifest that is now in the folder: the given one, or the other driver's.
    """
    # The run's id comes first: see read_run_id.
    values = {"run_id": manifest.run_id, **asdict(manifest), "items": _store(root, items)}
    if batches is not None:
        packed = {"order": _store(root, batches.order), "edges": _store(root, batches.edges)}
        values |= {"batches": packed, "padded_share": round(batches.padded_share, 6)}
    text = json.dumps(values, ensure_ascii=False, indent=1, default=str) + "\n"
    if create_bytes(manifest_path(root), text.encode("utf-8", "backslashreplace")):
        return Manifest(**values)
    other = load_manifest(root)
    if other is None:  # the other driver started anew in this very moment
        raise RunFolderError(f"Another driver is starting a run in {root}. Run the command again.")
    return other


def _store(root: Path, items: "Items") -> dict[str, Any]:
    description, data = pack_items(items)
    if data is not None:
        write_bytes(items_path(root, description["sha256"]), data)
    return description


def _load(root: Path, description: dict[str, Any]) -> "Items":
    return unpack_items(description, items_path(root, description.get("sha256", "")))


def load_manifest(root: str | os.PathLike[str]) -> Manifest | None:
    """Read the plan of the run in `root`; None if there is none.

    Raises:
        RunFolderError: if the file is damaged or was written by another version of the format.
    """
    path = manifest_path(Path(root))
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise RunFolderError(f"{root} is not a folder. Choose another output_dir.") from error
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}). Start anew with resume=False, or restore the file."
        ) from error
    _check_format(path, values)
    try:
        return Manifest(**values)
    except TypeError as error:
        raise RunFolderError(
            f"{path} is damaged ({error}). Start anew with resume=False."
        ) from error


def read_run_id(root: Path) -> str | None:
    """Return the id of the run in `root` without reading its plan, which may be long.

    Every commit asks for it, so it must not grow with the number of shards.
    """
    try:
        with manifest_path(root).open("rb") as file:
            match = _RUN_ID.match(file.read(200))
    except FileNotFoundError:
        return None
    if match:
        return match[1].decode()
    # Reformatted by hand, or damaged: finished work must not be dropped without a word.
    manifest = load_manifest(root)
    return manifest.run_id if manifest else None


def refuse_foreign(root: Path) -> None:
    """Raise if the `manifest.json` in `root` is some other program's; a damaged one is let pass."""
    path = manifest_path(root)
    with suppress(ValueError):
        _check_origin(path, json.loads(path.read_bytes()))


def _check_origin(path: Path, values: Any) -> None:
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise RunFolderError(
            f"{path} was not written by ESPnet3. Use another output_dir, or move that file away."
        )


def _check_format(path: Path, values: Any) -> None:
    _check_origin(path, values)
    if values.get("version") != VERSION:
        versions = values.get("versions")
        writer = versions.get("espnet3", "unknown") if isinstance(versions, dict) else "unknown"
        raise RunFolderError(
            f"{path} has version {values.get('version')} of the run format; this ESPnet3 reads "
            f"version {VERSION}. Finish the run with the ESPnet3 that began it "
            f"({writer}), or start anew with resume=False."
        )
