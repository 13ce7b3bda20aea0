"""Which file system a folder is on, and whether other machines can see it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

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
    before, _, after = line.partition(" - ")
    point, kind = before.split()[4], after.split()[0]
    return Mount(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), point), kind)
