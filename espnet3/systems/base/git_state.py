"""The commit that a recipe is run from."""

import os
import subprocess
from pathlib import Path
from typing import Any

_SECONDS = 10.0
_OF_ANOTHER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # set inside of a git hook


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit, branch, and what is changed in tracked files; None if git does not know it.

    The branch is None on a detached head. Files that git does not track, such as those of `exp/`,
    do not count.
    """
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
