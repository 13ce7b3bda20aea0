"""Layout of a run folder; the only module that spells these names."""

import os
import re
import time
import uuid
from pathlib import Path

DONE = "done"
POSITION = ".position"
FAILED = "failed.jsonl"
_SPLIT = "split."
_SHARD = re.compile(r"split\.(\d+)")
_ATTEMPT = re.compile(r"split\.(\d+)\.part-.+")
_OWNED = re.compile(r"split\.\d+\.part-([0-9a-f]{16})-([0-9a-f]{8})-[0-9a-f]{4}")
_ASIDE = re.compile(r"split\.(\d+)\.(damaged|replaced)-[0-9a-f]{16}")
_ITEMS = re.compile(r"manifest\.[0-9a-f]{16}\.(items|index)")
_GROUP = re.compile(r"splits\.\d+")
_PACKED, _PACKED_INDEX = "split.tar", "split.tar.index"
_DISCARDED = "-dead"
_CLAIM = ".claim"
MAX_FLAT_SHARDS = 4096
"""Shards of a new plan up to which they stand directly in the run folder."""
GROUP_SIZE = 1024
"""Shards in each group of a larger plan."""


def group_size(n_shards: int) -> int | None:
    """Return how many shards of a new plan share a sub-folder; None if there are none.

    A listing costs as much as a folder has entries, and some file servers slow down with each.
    """
    return GROUP_SIZE if n_shards > MAX_FLAT_SHARDS else None


class RunLayout:
    """The paths of a run with `n_shards` shards under `root`.

    Shard numbers are zero-padded to a common width, so that a plain `sorted()` is dataset order.
    With `group_size`, a plan's shards and their attempts stand in groups, sub-folders such as
    `splits.03` of so many shards each; without it, directly in the run folder.
    """

    def __init__(
        self, root: str | os.PathLike[str], n_shards: int, group_size: int | None = None
    ) -> None:
        self.root = Path(root)
        self.n_shards = n_shards
        self._folder = os.path.join(self.root, "")
        # Padded, so that `cat split.*/hyp.scp` in a shell is in dataset order, too.
        self._name = f"split.%0{len(str(max(n_shards - 1, 0)))}d"
        self._group_size = group_size
        self.n_groups = 0 if group_size is None else -(-n_shards // group_size)
        """Number of sub-folders with shards; 0 if these stand directly in the run folder."""
        self._group_width = len(str(max(self.n_groups - 1, 0)))

    @property
    def failed(self) -> Path:
        """Items given up on, one JSON object a line."""
        return self.root / FAILED

    @property
    def logs(self) -> Path:
        """A log per worker."""
        return self.root / "logs"

    @property
    def leases(self) -> Path:
        """Owners and claims."""
        return leases_folder(self.root)

    @property
    def success(self) -> Path:
        """The proof that the run is complete; written last."""
        return self.root / "_SUCCESS.json"

    @property
    def packed(self) -> Path:
        """Packed shards of a merged run."""
        return self.root / _PACKED

    @property
    def packed_index(self) -> Path:
        """Index of their files; written last."""
        return self.root / _PACKED_INDEX

    def shard_name(self, shard: int) -> str:
        """Return the folder name of a shard, such as `split.007`."""
        return self._name % shard

    def shard_named(self, name: str) -> int | None:
        """Return the shard whose folder has this name; none has one like `split.07`, a copy."""
        number = name[len(_SPLIT) :]
        if not number.isdecimal() or not number.isascii():
            return None
        shard = int(number)
        return shard if self._name % shard == name else None

    def shard(self, shard: int) -> Path:
        """Return the folder of a committed shard."""
        return self.root / self.relative_path(shard)

    def shard_path(self, shard: int) -> str:
        """Return the same as text, which takes a tenth of the time where there are many."""
        if self._group_size is None:
            return self._folder + self._name % shard
        return self._folder + self.relative_path(shard)

    def relative_path(self, shard: int) -> str:
        """Return the same seen from the run folder: `split.007`, or `splits.03/split.03456`."""
        if self._group_size is None:
            return self.shard_name(shard)
        return f"{self.group_name(self.group_of(shard))}/{self.shard_name(shard)}"

    def group_of(self, shard: int) -> int:
        """Return the number of the group that a shard is in; 0 in a plan without groups."""
        return 0 if self._group_size is None else shard // self._group_size

    def group_name(self, group: int) -> str:
        """Return the name of a group's sub-folder; empty in a plan without groups."""
        return "" if self._group_size is None else f"splits.{group:0{self._group_width}d}"

    def group_path(self, group: int) -> str:
        """Return the folder that holds the shards of a group: the run folder if there are none."""
        return os.path.join(self.root, self.group_name(group)) if self.n_groups else str(self.root)

    def shard_in(self, group: int, name: str) -> int | None:
        """Return the shard whose committed folder has this name in a group, or None."""
        shard = self.shard_named(name)
        # Without groups also beyond the plan: readers of such a folder tell what is wrong with it.
        is_here = shard is not None and (not self.n_groups or self.group_of(shard) == group)
        return shard if is_here else None

    def shards_of_group(self, group: int) -> range:
        """Return the numbers of the shards in a group."""
        if self._group_size is None:
            return range(self.n_shards)
        first = group * self._group_size
        return range(first, min(first + self._group_size, self.n_shards))

    def new_attempt(self, shard: int, owner_id: str = "", now: float | None = None) -> Path:
        """Return a unique folder name for one attempt at a shard.

        With an owner it tells whose it is and when it began, which is `now` by the clock of the
        file system, or by that of this machine: see `origin_of_attempt`.
        """
        unique = uuid.uuid4().hex[:16]
        if owner_id:
            unique = f"{owner_id}-{int(time.time() if now is None else now):08x}-{unique[:4]}"
        return Path(f"{self.shard(shard)}.part-{unique}")

    def new_aside(self, shard: int, *, is_damaged: bool) -> Path:
        """Return a name for a shard's folder that is set aside; see `shard_of_damaged`.

        In the same folder: without write access to a shard's folder one can still rename it there,
        but not move it elsewhere.
        """
        kind = "damaged" if is_damaged else "replaced"
        return Path(f"{self.shard(shard)}.{kind}-{uuid.uuid4().hex[:16]}")

    def claim(self, name: str) -> Path:
        """Return the claim file of `name` (a shard's name, or `merge`)."""
        return self.leases / f"{name}{_CLAIM}"


def manifest_path(root: Path) -> Path:
    """Return the path of the plan of the run in `root`."""
    return root / "manifest.json"


def items_path(root: Path, digest: str) -> Path:
    """Return the path of the packed item list that a manifest may refer to.

    Named after its content: drivers that start at once with other items must not share a file.
    """
    return root / f"manifest.{digest[:16]}.items"


def index_path(root: Path, digest: str) -> Path:
    """Return the path of the index of that list."""
    return items_path(root, digest).with_suffix(".index")


def discarded_path(attempt: Path) -> Path:
    """Return the name that an attempt gets before it is removed."""
    if attempt.name.endswith(_DISCARDED):
        return attempt
    # Renamed before it is removed: an attempt about to commit finds all of its folder, or nothing
    # (ADR 1).
    return attempt.with_name(attempt.name + _DISCARDED)


def leases_folder(root: Path) -> Path:
    """Return the folder of owner and claim files of the run in `root`."""
    return root / "leases"


def backup_name(name: str) -> str:
    """Return the claim of a backup attempt."""
    return f"{name}.twin"


def claimed_name(file_name: str) -> str:
    """Return what a claim file claims; empty for a file that is none."""
    return file_name.removesuffix(_CLAIM) if file_name.endswith(_CLAIM) else ""


def shard_of(name: str) -> int | None:
    """Return the shard number of a committed shard's folder name, or None for another name."""
    match = _SHARD.fullmatch(name)
    return int(match[1]) if match else None


def shard_of_attempt(name: str) -> int | None:
    """Return the shard number of an attempt's folder name, or None for another name."""
    match = _ATTEMPT.fullmatch(name)
    return int(match[1]) if match else None


def is_set_aside(name: str) -> bool:
    """Tell whether a name is that of a shard's folder that was set aside, until the merge."""
    return _ASIDE.fullmatch(name) is not None


def shard_of_damaged(name: str) -> int | None:
    """Return the shard of a folder that was set aside because it was damaged, or None."""
    match = _ASIDE.fullmatch(name)
    return int(match[1]) if match and match[2] == "damaged" else None


def origin_of_attempt(name: str) -> tuple[str, int] | None:
    """Return owner and begin (seconds since 1970) of an attempt; None if its name has none."""
    match = _OWNED.fullmatch(name)
    return (match[1], int(match[2], 16)) if match else None


def committed_name(name: str) -> str:
    """Return the name that the folder of an attempt, or of a shard, has once it is committed."""
    return name.partition(".part-")[0]


def is_group(name: str) -> bool:
    """Tell whether a name at the top of a run folder is that of a group of shards."""
    return _GROUP.fullmatch(name) is not None


def run_folder_of(shard_dir: Path) -> Path:
    """Return the run folder that a shard or an attempt is in, directly or in a group."""
    parent = shard_dir.parent
    # A run folder may be called like a group; then it holds a plan.
    is_inside = is_group(parent.name) and not manifest_path(parent).exists()
    return parent.parent if is_inside else parent


def committed_path(attempt: Path) -> str:
    """Return where an attempt will be once it is committed, seen from the run folder."""
    path = attempt.relative_to(run_folder_of(attempt))
    return path.with_name(committed_name(path.name)).as_posix()


def is_protocol_name(name: str) -> bool:
    """Tell whether a name in a run folder belongs to the protocol, not to the user.

    A group does not: what is in it does; see `is_group`.
    """
    fixed = {"manifest.json", "leases", "logs", "detached", FAILED, "_SUCCESS.json"}
    fixed |= {_PACKED, _PACKED_INDEX}
    patterns = (_SHARD, _ATTEMPT, _ASIDE, _ITEMS)
    return name in fixed or any(pattern.fullmatch(name) for pattern in patterns)
