"""Description and code of a detached run: the two files of its folder that decide what is run.

The code is a pickle, and loading a pickle runs code that another user may have written. So both
are read only if they belong to the user that reads them, or to one whom that user names.
"""

import errno
import hashlib
import json
import os
import pickle
import platform
import pwd
import re
import shlex
import socket
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3 import __version__
from espnet3.errors import ProviderError, RunFolderError, StaleRunError
from espnet3.io.atomic import PRIVATE, write_bytes, write_json
from espnet3.io.shared_files import (
    DamagedFileError,
    Moment,
    PathText,
    parse_record,
    parse_value,
)
from espnet3.parallel.faults import FaultPolicy
from espnet3.parallel.parallel import as_parallel_config
from espnet3.parallel.tasks import RunSpec, pack_spec, spec_for_folder
from espnet3.shards.layout import manifest_path
from espnet3.shards.manifest import Manifest, load_manifest
from espnet3.shards.records import RecordPaths, make_folders
from espnet3.text import has_control_characters

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner
    from espnet3.parallel.config import ParallelConfig

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_AGAIN = (
    "Run the command that began the run again: it writes the file again, and finished shards are "
    "kept."
)
# Three seconds: the two files are written one right after the other.
_N_LOOKS, _LOOK_SECONDS = 10, 0.3
_LIBRARY = re.compile(r"python\d+t?\.zip")
"""Where Python's own library begins in every `sys.path`."""
_ENCODED = "json:"


@dataclass(frozen=True)
class Description:
    """A run as it was submitted."""

    run_id: str
    name: str
    python: PathText
    cwd: PathText
    sys_path: list[PathText]
    parallel: dict[str, Any]
    """The `parallel` block."""
    policy: dict[str, Any]
    """The fields of the `FaultPolicy`."""
    code: dict[str, str] = field(default_factory=dict)
    """The user's module files, and a digest of each."""
    host: str = ""
    user: str = ""
    created: Moment = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    output_dir: PathText = ""
    """Where the merge writes, relative to the run folder; empty in older ones."""
    code_sha256: str = ""
    """Of `code.pkl`; empty in older ones."""

    def config(self) -> "ParallelConfig":
        """Return the `parallel` block, checked.

        Raises:
            ConfigError: naming each wrong key.
        """
        return as_parallel_config(self.parallel)

    def worker_settings(self) -> tuple[int, float]:
        """Return the threads of a worker, and after how many seconds a silent one is replaced.

        Without the checks of `config`, if these two are what it would make of them: they were made
        when the block was written, and what they need takes a worker as long as all its own code.

        Raises:
            ConfigError: naming each wrong key.
        """
        options, timeout = self.parallel.get("options"), self.parallel.get("worker_timeout")
        threads = options.get("threads_per_worker", 1) if isinstance(options, dict) else None
        if type(threads) is int and type(timeout) is float and threads > 0 and timeout > 0:
            return threads, timeout
        config = self.config()
        return int(config.options.get("threads_per_worker", 1)), config.worker_timeout

    def fault_policy(self) -> FaultPolicy:
        """Return the fault policy of the run.

        Raises:
            DamagedFileError: if it is not in the description.
        """
        return parse_value(self.policy, FaultPolicy, "run.json: policy")


def write_description(
    root: Path,
    runner: "BaseRunner",
    spec: RunSpec,
    manifest: Manifest,
    config: "ParallelConfig",
    policy: FaultPolicy,
) -> Description:
    """Write description and code of a run into its folder; those of an earlier call are replaced.

    `spec` must have the set-up function of the provider.

    Raises:
        ProviderError: if the code cannot be written.
    """
    paths = make_folders(root)
    # First the code: its digest is part of the description, which is what workers begin with.
    code_sha256 = write_code(paths.code, spec, runner)
    description = Description(
        run_id=manifest.run_id,
        name=manifest.name,
        python=sys.executable,
        cwd=os.getcwd(),
        sys_path=[os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)],
        parallel=config.model_dump(mode="json"),
        policy=asdict(policy),
        # Only the script itself is in the pickle: other modules are imported again on the node.
        code=digest_modules(spec, runner),
        host=socket.gethostname(),
        user=user_name(os.getuid()),
        created=time.time(),
        versions={"espnet3": __version__, "python": platform.python_version()},
        output_dir=manifest.output_dir,
        code_sha256=code_sha256,
    )
    # Options are commands with which jobs begin, and may export a token.
    write_json(paths.run, asdict(description), permissions=PRIVATE)
    return description


def load_trusted(root: Path, *, trust: str | None = None) -> Description:
    """Read the description of a run in order to act on it.

    Raises:
        RunFolderError: if there is none, because the run was begun by a program that waits for its
            workers; or if it is another user's.
    """
    path = RecordPaths(root).run
    try:
        return _parse(read_own(path, trust), path)
    # Any other error is about this node, and must not be reported as "no such run".
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunFolderError(_not_detached(root)) from error


def change_policy(root: Path, policy: FaultPolicy, *, trust: str | None = None) -> None:
    """Let workers to come tolerate other faults; those at work keep the policy that they read.

    Raises:
        RunFolderError: the run is another user's, who alone can change it.
    """
    description = load_trusted(root, trust=trust)
    if description.fault_policy() == policy:
        return
    path = RecordPaths(root).run
    if path.stat().st_uid != os.getuid():
        raise RunFolderError(
            f"{root} is a run of {description.user}, who alone can change on_error, max_errors, "
            "retries, item_timeout and start_timeout.",
            fix=f"Ask {description.user}, or leave these out",
        )
    write_json(path, asdict(replace(description, policy=asdict(policy))), permissions=PRIVATE)


def _parse(content: bytes, path: Path) -> Description:
    try:
        return parse_record(content, Description, path)
    except DamagedFileError as error:
        raise DamagedFileError(f"{error} {_AGAIN}") from None


def _not_detached(root: Path) -> str:
    if load_manifest(root) is None:
        return f"There is no run in {root}: it has no manifest.json. Is it the right folder?"
    return (
        f"The run in {root} was begun by a program that waits for its workers, so its folder has "
        "no code that others could run. To resume, run the same command again; to let it resume by "
        "itself from then on, with parallel.mode=async."
    )


def load_spec(root: Path, *, trust: str | None = None) -> bytes:
    """Return the packed `RunSpec` of the run in `root`, for a `ProcessPool`.

    The user's modules are not imported here, but in the process that loads it.

    Args:
        root: the run folder, which may have moved since.
        trust: a user whose code may be run as well as one's own.

    Raises:
        RunFolderError: if the code is another user's, or of another Python.
        StaleRunError: if the user's modules changed since the run was submitted.
    """
    manifest = _manifest(root)
    description, parts = _load(root, trust)
    # Before anything is unpickled, which would import the changed modules.
    check_code(description, root)
    return spec_for_folder(
        parts["spec"],
        root.resolve(),
        run_id=manifest.run_id,
        n_shards=manifest.n_shards,
        group_size=manifest.group_size,
        skip_errors=description.fault_policy().skip_errors,  # `resume` may have changed it
    )


def load_runner(root: Path, *, trust: str | None = None) -> Any:
    """Return the runner of the run in `root`, its `output_dir` as the plan has it.

    Adds to `sys.path` what the user's modules need.

    Raises:
        RunFolderError: if the code is another user's, of another Python, or cannot be imported.
    """
    import cloudpickle

    manifest = _manifest(root)
    description, parts = _load(root, trust)
    add_to_sys_path(description)
    try:
        runner = cloudpickle.loads(parts["runner"])
    except Exception as error:
        raise RunFolderError(
            f"The runner of {root} cannot be loaded here ({type(error).__name__}: {error}). Its "
            f"modules must be where they were on {description.host}: PYTHONPATH="
            f"{shlex.quote(os.pathsep.join(description.sys_path))}"
        ) from error
    runner.output_dir = _output_dir(root, manifest, description, runner)
    return runner


def _output_dir(root: Path, manifest: Manifest, description: Description, runner: Any) -> Path:
    """Return where the merge writes, as it was submitted: others may write into a run folder.

    Raises:
        RunFolderError: if the plan says something else now.
    """
    submitted = description.output_dir or os.path.relpath(os.curdir, runner.shard_subdir or ".")
    if os.path.normpath(manifest.output_dir) != os.path.normpath(submitted):
        raise RunFolderError(
            f"{manifest_path(root)} says that the outputs belong into {manifest.output_dir!r}, but "
            f"the run was submitted for {submitted!r}: it was changed since.",
            fix="Put that back, or run "
            "the command that began the run again: it merges without computing anything again.",
        )
    return Path(os.path.normpath(root.resolve() / submitted))


def check_code(description: Description, root: Path) -> None:
    """Refuse to continue in `root` with code that is not what was submitted.

    Raises:
        StaleRunError: naming the file that changed, and the ways on.
        RunFolderError: if a file cannot be read on this machine; others may see it.
    """
    for path, digest in description.code.items():
        now = digest_file(Path(path))
        # Unreadable is not changed: StaleRunError would stop the run for all workers.
        if not now:
            raise RunFolderError(
                f"{path}, with code of the run, cannot be read on {socket.gethostname()}. Workers "
                f"need it where it was on {description.host}."
            )
        if now != digest:
            raise StaleRunError(
                f"{path} changed since the run was submitted, so results would be of two versions.",
                fix=f"Put the file back and type: espnet3 resume {shlex.quote(str(root))} ; or run "
                "the command that began the run again, which says what is to be decided.",
            )


def add_to_sys_path(description: Description) -> None:
    """Let this process import what the submitting one could, in the same order.

    What stood before Python's own library there does so here: a user's `datasets.py` must not be
    taken for the package. Python's own folders are those of this machine.
    """
    theirs = description.sys_path
    library = [i for i, entry in enumerate(theirs) if _LIBRARY.fullmatch(os.path.basename(entry))]
    n_first = library[0] if library else len(theirs)
    entries = [*theirs[:n_first], *sys.path, *theirs[n_first:]]
    # In place: other modules may hold this very list.
    sys.path[:] = dict.fromkeys(entries)


def _load(root: Path, trust: str | None) -> tuple[Description, dict[str, bytes]]:
    description, parts = _load_pair(root, trust)
    theirs, ours = description.versions.get("python", ""), platform.python_version()
    # cloudpickle ships bytecode, which differs between minor versions.
    if _minor(theirs) != _minor(ours):
        raise RunFolderError(
            f"The code of the run in {root} was written by Python {theirs}, and this is {ours}, "
            "which cannot load it.",
            fix=f"Use the same: {description.python} on {description.host}",
        )
    return description, parts


def _load_pair(root: Path, trust: str | None) -> tuple[Description, dict[str, bytes]]:
    """Return a description and the code that belongs to it.

    A second submission of the run writes one after the other.
    """
    path = RecordPaths(root).code
    for _ in range(_N_LOOKS):
        description = load_trusted(root, trust=trust)  # it says where modules are imported from
        try:
            return description, read_code(path, trust=trust, digest=description.code_sha256)
        except FileNotFoundError as error:
            raise RunFolderError(f"{path}, with the code of the run, is not there.") from error
        except OtherCodeError as error:
            different = error
            time.sleep(_LOOK_SECONDS)
    raise different


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _manifest(root: Path) -> Manifest:
    manifest = load_manifest(root)
    if manifest is None:
        raise RunFolderError(_not_detached(root))
    return manifest


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
        RunFolderError: if the file is another user's, or no such file.
        OtherCodeError: if it has another digest than the given one.
    """
    packed = read_own(path, trust)
    if digest and hashlib.sha256(packed).hexdigest() != digest:
        raise OtherCodeError(f"{path} is not the code with which the run was submitted. {_AGAIN}")
    try:
        # Only after owner and digest are checked: loading a pickle runs what it holds.
        parts: dict[str, bytes] = pickle.loads(packed)
        return {name: parts[name] for name in ("spec", "runner")}
    except Exception as error:  # a pickle can raise anything
        raise RunFolderError(
            f"{path}, with the code of the run, cannot be read ({error}). {_AGAIN}"
        ) from error


def read_own(path: Path, trust: str | None) -> bytes:
    """Return the content of a file that decides what is run, if it is the caller's own.

    Raises:
        RunFolderError: if it, or its folder, belongs to another user who is not trusted, if it is
            a link, or if it cannot be read.
        FileNotFoundError: if it is not there.
    """
    check_folder(path.parent, trust)
    try:
        # No link: it could lead to another file of the caller's, such as another run's code.
        # O_NONBLOCK: opening a FIFO that another user put there would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            # Of the open file, not of the name: another could be put there in between.
            check_owner(path, found, trust)
            if not stat.S_ISREG(found.st_mode):
                raise RunFolderError(f"{path} is no file. {_AGAIN}")
            return file.read()
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise RunFolderError(_ask_owner(path)) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RunFolderError(f"{path} is a link, not the file itself. {_AGAIN}") from error
        raise RunFolderError(f"{path} cannot be read ({error.strerror}). {_AGAIN}") from error


def _ask_owner(path: Path) -> str:
    """Say how the owner of a private file can share it."""
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
    """Say which owner keeps others out of a folder above, and how to let them in."""
    closed = next((above for above in folder.parents if os.path.exists(above)), folder)
    owner = user_name(os.stat(closed).st_uid)
    return (
        f"{folder} cannot be reached: {closed} is closed to {user_name(os.getuid())}. To share "
        f"what is in it with their group, {owner} types: chmod g+rX {shlex.quote(str(closed))}"
    )


def check_folder(folder: Path, trust: str | None) -> None:
    """Refuse a folder of another user: they decide what is in it.

    Raises:
        RunFolderError: with what to type for one that is trusted; also if it is out of reach.
        FileNotFoundError: if there is none.
    """
    try:
        found = os.stat(folder)
    except PermissionError as error:
        raise RunFolderError(_ask_above(folder)) from error
    owner = user_name(found.st_uid)
    # Root's folders are accepted, since root can change any file anyway.
    if found.st_uid not in (os.getuid(), 0) and trust != owner:
        raise RunFolderError(
            f"{folder} belongs to {owner}, who decides what is in it, and to continue this run "
            f"is to run it as {user_name(os.getuid())}. If you trust them, add: --trust {owner}"
        )


def check_owner(path: Path, found: os.stat_result, trust: str | None) -> None:
    """Refuse a file that another user wrote, or could have written.

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
    # One's own file may still hold what a colleague of the group wrote into it.
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise RunFolderError(
            f"{path} could have been changed by anybody: its mode is "
            f"{stat.S_IMODE(found.st_mode):o}. If you know that it was not: chmod go-w "
            f"{shlex.quote(str(path))}; or, where that does nothing, add: --trust {owner}"
        )


def user_name(uid: int) -> str:
    """Return the name of a user by number; the number itself if it has no name here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def digest_modules(spec: RunSpec, runner: Any) -> dict[str, str]:
    """Return the files of the user's modules that a run imports by name, with their digests.

    The same modules as its results depend on, see `code_digests`: not those of ESPnet3, of
    installed packages, or of the script itself, which is in the pickle.
    """
    from espnet3.parallel.identity import modules_named, own_files  # workers need them not

    things = [type(runner), type(runner.provider), spec.setup_fn]
    files = own_files(things, modules_named(vars(runner.provider)))
    return {path: digest for path in files if (digest := digest_file(Path(path)))}


def digest_file(path: Path) -> str:
    """Return a digest of a file's content; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def encode_folders(folders: Sequence[Path]) -> list[str]:
    """Return a word per folder, none of which has a line break or another control character.

    A line of a job script that begins with `#$` is an option for Grid Engine wherever it stands,
    also inside quotes; and a submit file of HTCondor has no way to write a line break.
    """
    return [_spell(os.fspath(folder)) for folder in folders]


def _spell(folder: str) -> str:
    # A folder that happens to begin with the prefix must be encoded, or decoding would damage it.
    if has_control_characters(folder) or folder.startswith(_ENCODED):
        return _ENCODED + json.dumps(folder)
    return folder


def decode_folder(word: str) -> Path:
    """Return the folder that a word stands for.

    Raises:
        ValueError: if the word is damaged.
    """
    return Path(json.loads(word.removeprefix(_ENCODED)) if word.startswith(_ENCODED) else word)
