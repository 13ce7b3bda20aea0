"""Checks of the file system that a run needs: kind, rename, links, fsync, clock, space."""

import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from espnet3.findings import Finding, never_raises
from espnet3.io.atomic import fsync_dir, fsync_file, write_bytes
from espnet3.io.shared_files import clock_skew

MIN_FREE = 1e9
"""Bytes; below it a warning is given."""
MAX_SKEW = 5.0
"""Seconds by which the clock of a file server may differ; heartbeats are judged by it."""

_MOUNTS = Path("/proc/self/mountinfo")
_IN_MEMORY = {"tmpfs", "ramfs", "overlay", "devtmpfs", "squashfs"}
_OWN_FOLDERS = (
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/run",
    "/scratch/local",
    "/local",
)  # of each machine
_NETWORK = {
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "ceph", "cifs", "smb3", "glusterfs",
    "panfs", "afs", "orangefs", "9p", "virtiofs", "wekafs", "pvfs2", "ocfs2", "gfs2",
}  # fmt: skip
_OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST}
_TRIAL_BYTES = 1 << 18  # a full quota shows only when something is really written


@dataclass(frozen=True)
class Mount:
    """A mounted file system."""

    point: str = "/"
    kind: str = "an unknown file system"

    @property
    def is_network(self) -> bool:
        """Tell whether it comes from another machine."""
        return self.kind in _NETWORK or self.kind.startswith("fuse.")

    def is_local(self, path: str | os.PathLike[str]) -> bool:
        """Tell whether a folder on it is surely of this machine alone.

        A disk (ext4, xfs) counts as shared: this machine may be the one that serves it.
        """
        if self.is_network:
            return False
        real = os.path.realpath(path)
        return self.kind in _IN_MEMORY or any(
            real == folder or real.startswith(f"{folder}/") for folder in _OWN_FOLDERS
        )


def find_mount(folder: Path, mounts: Path = _MOUNTS) -> Mount:
    """Return what an existing folder is mounted from."""
    try:
        # The name of a mount point need not be UTF-8.
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:  # no Linux
        return Mount()
    real = os.path.realpath(folder)
    best = Mount()
    for line in lines:
        mount = _read(line)
        inside = mount.point == "/" or real == mount.point or real.startswith(f"{mount.point}/")
        if inside and len(mount.point) >= len(best.point):  # the last of equals is on top
            best = mount
    return best


def _read(line: str) -> Mount:
    # The number of fields before the dash varies; a blank in a name is written \040.
    before, _, after = line.partition(" - ")
    point, kind = before.split()[4], after.split()[0]
    return Mount(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), point), kind)


def scratch_name() -> str:
    """Return a unique hidden name that identifies this process."""
    return f".espnet3-doctor-{uuid.uuid4().hex[:12]}"


def nearest_folder(path: Path) -> Path:
    """Return the folder, or the first of those above it that exists."""
    path = Path(os.path.abspath(path))
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def check_folders(folders: Mapping[str, Path]) -> list[Finding]:
    """Try in each folder, or where it would be made, what a run does there.

    Args:
        folders: by the name of the setting; those on one file system are tried once each all the
            same, because quotas and permissions are of folders.
    """
    return [finding for key, path in folders.items() for finding in _check(key, path)]


def _check(key: str, path: Path) -> list[Finding]:
    @never_raises(key)
    def check() -> list[Finding]:
        return _check_folder(key, path)

    return check()


def _check_folder(key: str, path: Path) -> list[Finding]:
    if os.path.lexists(path) and not path.is_dir():
        message = f"{path} is no folder"
        return [Finding("problem", key, message, f"Remove it, or set {key} to another place")]
    place = nearest_folder(path)
    trial = place / scratch_name()
    try:
        trial.mkdir()
        write_bytes(trial / "file", os.urandom(_TRIAL_BYTES))
    except OSError as error:
        shutil.rmtree(trial, ignore_errors=True)
        return [_unwritable(key, path, place, error)]
    try:
        problems = [*_rename(key, trial), *_links(key, trial), *_clock(key, trial)]
        seconds = _sync_seconds(trial)
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    free = shutil.disk_usage(place).free
    if free < MIN_FREE:
        problems.append(_little_space(key, place, free))
    if problems:
        return problems
    made = "" if path.is_dir() else " (will be made)"
    message = (
        f"{path}{made}: {find_mount(place).kind}, {free / 1e9:.0f} GB free, fsync in "
        f"{seconds * 1000:.0f} ms; rename, links and clock are right"
    )
    return [Finding("ok", key, message)]


def _unwritable(key: str, path: Path, place: Path, error: OSError) -> Finding:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = f"Make room (df -h {place}; quota -s), or set {key} to another place"
    else:
        fix = f"Set {key} to a folder that you may write to"
    return Finding("problem", key, f"{path} cannot be written: {place}: {reason}", fix)


def _rename(key: str, trial: Path) -> list[Finding]:
    """Rename a folder, to a free name and over one that is taken: the first must stay."""
    first, second, target = (trial / name for name in ("first", "second", "target"))
    for folder in (first, second):
        folder.mkdir()
        (folder / "done").write_text(folder.name)
    os.rename(first, target)
    try:
        os.rename(second, target)
        refused = False
    except OSError as error:
        refused = error.errno in _OCCUPIED
    if refused and (target / "done").read_text() == "first":
        return []
    message = (
        f"{trial.parent}: renaming a folder over one that is taken is not refused; a shard that "
        "ran twice could replace finished results"
    )
    return [Finding("problem", key, message, f"Set {key} to a folder on another file system")]


def _links(key: str, trial: Path) -> list[Finding]:
    """Create a name by a hard link, twice: the second must fail."""
    try:
        os.link(trial / "file", trial / "linked")
    except OSError as error:
        message = (
            f"{trial.parent} has no hard links ({error.strerror}); runs work without them, but a "
            "process that is killed at a bad moment may leave an empty file"
        )
        return [Finding("warning", key, message)]
    with suppress(FileExistsError):
        os.link(trial / "file", trial / "linked")
        message = f"{trial.parent}: two processes can create the same name; both would be the first"
        return [Finding("problem", key, message, f"Set {key} to a folder on another file system")]
    return []


def _clock(key: str, trial: Path) -> list[Finding]:
    """Compare the time that a file server gives to a new file with that of this machine."""
    skew = clock_skew(trial)
    if abs(skew) <= MAX_SKEW:
        return []
    message = f"{trial.parent}: its clock is {-skew:+.0f} s away from that of this machine"
    return [Finding("warning", key, message, "Let both follow one time server: timedatectl status")]


def _sync_seconds(trial: Path) -> float:
    begin = time.monotonic()
    fsync_file(trial / "file")
    fsync_dir(trial)
    return time.monotonic() - begin


def _little_space(key: str, place: Path, free: float) -> Finding:
    message = f"{place} has {free / 1e9:.2f} GB left"
    return Finding("warning", key, message, f"Make room, or set {key} to another place")


@never_raises("shared folders")
def check_shared(
    folders: Mapping[str, Path], *, needs_shared: bool, judged: Collection[str] = ()
) -> list[Finding]:
    """Warn of folders that other machines cannot see.

    Args:
        folders: by the name of the setting.
        needs_shared: whether workers run on other machines.
        judged: settings whose folders a job has tried to write to.
    """
    if not needs_shared:
        return []
    local = {
        key: mount
        for key, path in folders.items()
        if key not in judged and (mount := find_mount(nearest_folder(path))).is_local(path)
    }
    if not local:
        return []
    keys = ", ".join(local)
    places = ", ".join(f"{folders[key]} ({mount.kind})" for key, mount in local.items())
    message = f"{keys}: {places} may be of this machine alone, and workers elsewhere must see it"
    fix = f"Set {keys} to folders that all nodes share; to see whether they do: --submit"
    return [Finding("warning", "shared folders", message, fix)]
