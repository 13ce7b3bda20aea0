"""Record of a stage run: config, source of each key, command, versions.

`<exp_dir>/config/<stage>.{yaml,json}` describe the run that made what is there. A stage that has
nothing to do, or is refused, leaves them as they were.
"""

import json
import os
import platform
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3 import __version__
from espnet3.io.atomic import write_json, write_text
from espnet3.shards.lease import start_time
from espnet3.systems.base.stages import Stage

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_PACKAGES = (
    "torch",
    "lightning",
    "numpy",
    "omegaconf",
    "hydra-core",
    "pydantic",
    "dask",
    "distributed",
    "dask-jobqueue",
    "rapidfuzz",
)
_KEPT_RUNS = 20
"""Times of earlier runs of a stage that its record keeps."""


@dataclass(frozen=True)
class Invocation:
    """Command line with which the recipe was called."""

    command: Sequence[str]
    """As it can be pasted into a shell, secrets included."""
    working_dir: str
    """The folder it was typed in, relative to the recipe's."""
    recipe_dir: Path

    def shown(self) -> str:
        """Return the command without secrets."""
        from espnet3.config.redact import redact_command

        return shlex.join(redact_command(list(self.command)))

    def hidden(self) -> dict[str, str]:
        """Return the words with a secret, each with what to show instead; also as quoted."""
        from espnet3.config.redact import redact_command

        shown = redact_command(list(self.command))
        pairs = [pair for pair in zip(self.command, shown, strict=True) if pair[0] != pair[1]]
        spellings: tuple[Callable[[str], str], ...] = (shlex.quote, str)
        return {spell(secret): spell(word) for spell in spellings for secret, word in pairs}


@dataclass
class StageRecord:
    """The record of one run of a stage.

    The first one is written when the stage begins; one that replaces another when it is known that
    there is something to do, which the stage reports with `publish`, and else at its end.
    """

    folder: Path
    stage: Stage
    loaded: "LoadedConfig"
    invocation: Invocation
    _values: dict[str, Any] = field(default_factory=dict)
    _begin: float = 0.0
    _is_published: bool = False

    def begin(self) -> None:
        """Note the config and what is known so far; write it, unless that would replace another."""
        self._begin = time.monotonic()
        self._values = {**self._describe(), "earlier": self._earlier()}
        if not any(file.exists() for file in self._files):
            self.publish()

    def publish(self) -> None:
        """Write it, as the stage has something to do."""
        if not self._is_published:
            self._is_published = True
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self._files[0], self._yaml())
            self._write()

    def finish(self, state: str, *, changed_nothing: bool = False) -> None:
        """Add how and when it ended: done, skipped, failed, interrupted.

        Args:
            state: of these.
            changed_nothing: the stage was refused, or found all done: what was on record before
                stays.
        """
        if changed_nothing and not self._is_published:
            return
        self.publish()
        # monotonic, because the clock may be set during a stage that takes days.
        seconds = round(time.monotonic() - self._begin, 3)
        self._values.update(state=state, end=_now(), seconds=seconds)
        self._write()

    @property
    def _files(self) -> tuple[Path, Path]:
        return self.folder / f"{self.stage.name}.yaml", self.folder / f"{self.stage.name}.json"

    def _write(self) -> None:
        write_json(self._files[1], self._values)

    def _describe(self) -> dict[str, Any]:
        return {
            "stage": self.stage.name,
            "number": self.stage.number,
            "state": "running",
            "command": self.invocation.shown(),
            "working_dir": self.invocation.working_dir,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": start_time(os.getpid()),
            "versions": versions(),
            "git": git_state(self.invocation.recipe_dir),
            "start": _now(),
            "end": None,
            "seconds": None,
            "files": list(self.loaded.files),
            "sources": self._sources(),
        }

    def _earlier(self) -> list[dict[str, Any]]:
        """Return the runs before this one, oldest first; one that was killed has no end."""
        before = read_record(self._files[1])
        if not before:
            return []
        last = {key: before.get(key) for key in ("state", "start", "end", "seconds")}
        known = before.get("earlier")
        return [*(known if isinstance(known, list) else []), last][-_KEPT_RUNS:]

    def _sources(self) -> dict[str, str]:
        from espnet3.config.redact import redact_command

        # The source of an override is the override itself, with its value.
        begin = "command line: "
        sources = {key: str(source) for key, source in self.loaded.sources.items()}
        return {
            key: begin + redact_command([text.removeprefix(begin)])[0]
            if text.startswith(begin)
            else text
            for key, text in sources.items()
        }

    def _yaml(self) -> str:
        from omegaconf import OmegaConf

        from espnet3.config.redact import redact

        # A line break would end the comment, and the rest of the command would be YAML.
        command = self.invocation.shown().replace("\n", "\\n")
        head = f"# {command}\n# {self._values['start']}\n"
        return head + OmegaConf.to_yaml(OmegaConf.create(redact(self.loaded.resolved())))


def read_record(path: Path) -> dict[str, Any]:
    """Return a record of a stage; empty if there is none, or it is damaged."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        # It only costs the times of earlier runs, and must not stop a stage.
        return {}
    return values if isinstance(values, dict) else {}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results may depend on."""
    found = {"python": platform.python_version(), "espnet3": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


_SECONDS = 10.0
_OF_ANOTHER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # set inside of a git hook


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit, branch, and what is changed in tracked files; None if git does not know it.

    The branch is None on a detached head. Files that git does not track, such as those of `exp/`,
    do not count.
    """
    # --verify: without it, a bare repository without commits answers "HEAD".
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "diff", "--shortstat", "HEAD")
    return {
        "commit": commit,
        "branch": _git(folder, "branch", "--show-current") or None,
        "dirty": None if changes is None else bool(changes),
        "changes": changes or None,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    # Reading must not take the lock of the index from a git command of the user's.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    for name in _OF_ANOTHER:
        environment.pop(name, None)
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=_SECONDS,
            env=environment,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()
