"""Why a folder cannot be made or used, in words."""

from __future__ import annotations

import errno
import os
import shlex

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is, without the import of `typing`
if TYPE_CHECKING:
    from collections.abc import Iterator

    from espnet3.io.atomic import StrPath

_IN_THE_WAY = (errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def folder_trouble(error: OSError, path: StrPath | None = None) -> str:
    """Return why the system refuses a path, with what is in the way where that can be seen.

    `File exists` may mean a link whose target is not there, and `Not a directory` a file far above.

    Args:
        error: what the system said.
        path: what was to be made; that of the error if None.
    """
    if error.errno in _IN_THE_WAY:
        for each in (path, error.filename):
            found = in_the_way(each) if isinstance(each, str | os.PathLike) else ""
            if found:
                return found
    return error.strerror or str(error)


def in_the_way(path: StrPath) -> str:
    """Say which link or file keeps a path from being a folder; empty if there is none."""
    for place in _from_the_root(os.path.abspath(os.fspath(path))):
        if os.path.islink(place) and not os.path.exists(place):
            target = os.path.join(os.path.dirname(place), os.readlink(place))
            return (
                f"{place} is a symbolic link to {target}, which does not exist (make it: mkdir -p "
                f"{shlex.quote(target)} ; or remove the link: rm {shlex.quote(place)})"
            )
        if os.path.exists(place) and not os.path.isdir(place):
            return f"{place} is a file, not a folder"
    return ""


def _from_the_root(path: str) -> Iterator[str]:
    parent = os.path.dirname(path)
    if parent != path:
        yield from _from_the_root(parent)
    yield path
