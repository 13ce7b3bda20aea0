"""Dask's own configuration of job clusters, read without Dask where the user has not set any.

Importing Dask takes longer than all else that submitting a detached run does.
"""

import os
import re
import site
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Any

from espnet3.schedulers import known_scheduler

DEFAULTS: Mapping[str, Any] = MappingProxyType({
    "name": "dask-worker", "cores": None, "memory": None, "processes": None, "python": None,
    "interface": None, "death-timeout": 60, "local-directory": None, "extra": None,
    "shared-temp-directory": None, "worker-command": "distributed.cli.dask_worker",
    "worker-extra-args": [], "shebang": "#!/usr/bin/env bash", "queue": None, "account": None,
    "walltime": None, "env-extra": None, "job-script-prologue": [], "job-extra": None,
    "job-extra-directives": [], "job-directives-skip": [], "log-directory": None,
    "scheduler-options": {},
})  # fmt: skip
"""What dask-jobqueue looks up for each of its own schedulers."""
_QUIET = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "500ms"}
_FILES = (".json", ".yaml", ".yml")
# dask-jobqueue itself leaves a file there in which all lines are comments.
_OF_JOBS = re.compile(r"^[^#\n]*jobqueue", re.MULTILINE)


def settings(env: str) -> Mapping[str, Any]:
    """Return what Dask's configuration says of a scheduler's jobs, the defaults included.

    Names have dashes: `job-extra-directives`.
    """
    defaults = {**DEFAULTS, **known_scheduler(env).dask_defaults}
    # One that is imported may have been told more by the user's program.
    if "dask" not in sys.modules and not _may_be_set():
        return defaults
    import dask

    found = dask.config.get(f"jobqueue.{env}", None) or {}
    return {**defaults, **{name.replace("_", "-"): value for name, value in found.items()}}


def is_default(env: str) -> bool:
    """Tell whether the user has set nothing there."""
    return settings(env) == {**DEFAULTS, **known_scheduler(env).dask_defaults}


def quiet_settings() -> dict[str, Any]:
    """Return settings with which Dask itself takes less of the time that a model takes to load.

    By its defaults each process of a cluster looks 50 times a second whether its event loop is
    late, and a worker 100 times at what its thread does, for a page of the dashboard. Each look
    needs the lock that an import holds. What the user has set anywhere of these stays.
    """
    import dask

    defaults = dask.config.merge(*dask.config.defaults)
    own = dask.config.collect()  # the user's files and variables

    def is_set(block: str) -> bool:
        by_file = dask.config.get(block, None, config=own) is not None
        return by_file or dask.config.get(block) != dask.config.get(block, config=defaults)

    return {key: value for key, value in _QUIET.items() if not is_set(key.rpartition(".")[0])}


@cache  # Dask, too, reads its files once
def _may_be_set() -> bool:
    """Tell whether files or variables that Dask reads name job clusters."""
    if any(name.startswith(("DASK_JOBQUEUE", "DASK_INTERNAL_INHERIT")) for name in os.environ):
        return True
    for path in _files():
        # What cannot be read, Dask ignores; what cannot be decoded, it shall judge.
        with suppress(OSError), open(path, "rb") as file:
            if _OF_JOBS.search(file.read().decode(errors="replace")):
                return True
    return False


def _files() -> Iterator[str]:
    prefixes = (sys.prefix, *site.PREFIXES)
    places = [os.environ.get("DASK_ROOT_CONFIG", "/etc/dask")]
    places += [os.path.join(prefix, "etc", "dask") for prefix in prefixes]
    places += [os.path.join(os.path.expanduser("~"), ".config", "dask")]
    places += [os.environ["DASK_CONFIG"]] if "DASK_CONFIG" in os.environ else []
    for place in dict.fromkeys(places):
        if not os.path.isdir(place):
            yield place
            continue
        with suppress(OSError):
            names = os.listdir(place)
            yield from (os.path.join(place, n) for n in names if n.lower().endswith(_FILES))
