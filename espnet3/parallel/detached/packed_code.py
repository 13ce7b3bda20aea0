"""Pickled runner and spec of a detached run, with ownership and digest checks.

The file is a pickle, and to load a pickle is to run what somebody else wrote. So it is loaded only
if it belongs to the one who loads it, or to somebody whom they name.
"""

import errno
import hashlib
import os
import pickle
import pwd
import shlex
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

from espnet3.errors import ProviderError, RunFolderError
from espnet3.io.atomic import PRIVATE, write_bytes
from espnet3.parallel.source import modules_named, own_files
from espnet3.parallel.tasks import RunSpec, pack_spec

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def write_code(path: Path, spec: RunSpec, runner: Any) -> str:
    """Write what workers and the merge need; the two parts can be loaded one without the other.

    Only its owner can read it: what a provider holds, such as a token, is in it.

    Returns:
        The digest of the file.

    Raises:
        ProviderError: naming what is too large, or cannot be sent at all.
    """
    parts = {"spec": pack_spec(spec, runner.provider), "runner": _pack_runner(runner)}
    packed = pickle.dumps(parts)
    write_bytes(path, packed, permissions=PRIVATE)
    return hashlib.sha256(packed).hexdigest()


def _pack_runner(runner: Any) -> bytes:
    import cloudpickle

    try:
        packed: bytes = cloudpickle.dumps(runner)
    except Exception as error:
        raise ProviderError(
            f"{type(runner).__name__} cannot be written for detached workers "
            f"({type(error).__name__}: {error}), and the last of them merges with it. Open files, "
            "locks and connections belong in the provider's build functions; or set parallel.mode: "
            "sync."
        ) from error
    return packed


class OtherCodeError(RunFolderError):
    """The code is not what the description of the run was written with."""


def read_code(path: Path, *, trust: str | None = None, digest: str = "") -> dict[str, bytes]:
    """Return the packed parts, `spec` and `runner`, if the caller may load them.

    Raises:
        RunFolderError: if the file is somebody else's, or no such file.
        OtherCodeError: if it has another digest than the given one.
    """
    packed = read_own(path, trust)
    if digest and hashlib.sha256(packed).hexdigest() != digest:
        raise OtherCodeError(f"{path} is not the code with which the run was submitted. {_ANEW}")
    try:
        parts: dict[str, bytes] = pickle.loads(packed)
        return {name: parts[name] for name in ("spec", "runner")}
    except Exception as error:  # a pickle can raise anything
        raise RunFolderError(
            f"{path}, with the code of the run, cannot be read ({error}). {_ANEW}"
        ) from error


def read_own(path: Path, trust: str | None) -> bytes:
    """Return the content of a file that decides what is run, if it is the caller's own.

    Raises:
        RunFolderError: if it, or its folder, belongs to somebody else who is not trusted, if it is
            a link, or if it cannot be read.
        FileNotFoundError: if it is not there.
    """
    check_folder(path.parent, trust)
    try:
        # No link: it could lead to another file of the caller's, such as another run's code.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            check_owner(path, found, trust)
            if not stat.S_ISREG(found.st_mode):
                raise RunFolderError(f"{path} is no file. {_ANEW}")
            return file.read()
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise RunFolderError(_ask_owner(path)) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RunFolderError(f"{path} is a link, not the file itself. {_ANEW}") from error
        raise RunFolderError(f"{path} cannot be read ({error.strerror}). {_ANEW}") from error


_ANEW = (
    "Run the command that began the run again: it writes the file again, and finished shards are "
    "kept."
)


def _ask_owner(path: Path) -> str:
    """Say who can share a file that its owner keeps for themselves, and how."""
    folder = shlex.quote(str(path.parent))
    try:
        owner = user_name(path.stat().st_uid)
    except OSError:
        owner = "its owner"
    return (
        f"{path} can only be read by {owner}: code and settings may hold secrets. To share them "
        f"with their group, {owner} types: chmod -R g+rX {folder} ; then others continue with: "
        f"--trust {owner}"
    )


def _ask_above(folder: Path) -> str:
    """Say who keeps others out of a folder above, and how they can let them in."""
    closed = next((above for above in folder.parents if os.path.exists(above)), folder)
    owner = user_name(os.stat(closed).st_uid)
    return (
        f"{folder} cannot be reached: {closed} is closed to {user_name(os.getuid())}. To share "
        f"what is in it with their group, {owner} types: chmod g+rX {shlex.quote(str(closed))}"
    )


def check_folder(folder: Path, trust: str | None) -> None:
    """Refuse a folder that somebody else made: they decide what is in it.

    Raises:
        RunFolderError: with what to type for one that is trusted; also if it is out of reach.
        FileNotFoundError: if there is none.
    """
    try:
        found = os.stat(folder)
    except PermissionError as error:
        raise RunFolderError(_ask_above(folder)) from error
    owner = user_name(found.st_uid)
    if found.st_uid not in (os.getuid(), 0) and trust != owner:
        raise RunFolderError(
            f"{folder} belongs to {owner}, who decides what is in it, and to continue this run "
            f"is to run it as {user_name(os.getuid())}. If you trust them, add: --trust {owner}"
        )


def check_owner(path: Path, found: os.stat_result, trust: str | None) -> None:
    """Refuse a file that somebody else wrote, or could have written.

    Raises:
        RunFolderError: with what to type for one that is trusted.
    """
    owner = user_name(found.st_uid)
    if trust == owner:
        return
    if found.st_uid != os.getuid():
        hint = "" if trust is None else f" (not to {trust})"
        raise RunFolderError(
            f"{path} belongs to {owner}{hint}, and to continue this run is to run their code as "
            f"{user_name(os.getuid())}. If you trust it, add: --trust {owner}"
        )
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise RunFolderError(
            f"{path} could have been changed by anybody: its mode is "
            f"{stat.S_IMODE(found.st_mode):o}. If you know that it was not: chmod go-w "
            f"{shlex.quote(str(path))}; or, where that does nothing, add: --trust {owner}"
        )


def user_name(uid: int) -> str:
    """Return who a number stands for; the number itself if nobody here knows."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class _ForFolder:
    """A packed spec that, once it is loaded, says of which run it is.

    Only the process that runs the items loads it, and with it the user's modules.
    """

    def __init__(self, packed: bytes, run_id: str, run_dir: str, n_shards: int) -> None:
        self._arguments = (packed, run_id, run_dir, n_shards)

    def __reduce__(self) -> Any:
        return _load_spec, self._arguments


def spec_for_folder(packed: bytes, run_id: str, run_dir: Path, n_shards: int) -> bytes:
    """Return a packed spec like the given one, for the run in `run_dir`."""
    return pickle.dumps(_ForFolder(packed, run_id, str(run_dir), n_shards))


def _load_spec(packed: bytes, run_id: str, run_dir: str, n_shards: int) -> RunSpec:
    spec: RunSpec = pickle.loads(packed)
    return replace(spec, run_id=run_id, run_dir=run_dir, n_shards=n_shards)


def digest_modules(spec: RunSpec, runner: Any) -> dict[str, str]:
    """Return the files of the user's modules that a run imports by name, with their digests.

    The same modules as its results depend on: see `espnet3.parallel.source`. Not those of ESPnet3,
    of installed packages, or of the script itself, which is in the pickle.
    """
    things = [type(runner), type(runner.provider), spec.setup_fn]
    files = own_files(things, modules_named(vars(runner.provider)))
    return {path: digest for path in files if (digest := digest_file(Path(path)))}


def digest_file(path: Path) -> str:
    """Return a digest of a file's content; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
