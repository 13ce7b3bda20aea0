"""Providers, which build the environment for a runner's `forward`, and what is kept of it."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

_WHOLE = ""
_MOST_ENTRIES = 200  # of a folder that a config names; more are data, which is built again


class EnvironmentProvider(ABC):
    """Builds the environment of a worker: a dict of what `forward` takes besides the index.

    Any object with these two methods will do; deriving from this class only documents it.

    Example:
        >>> class WordsProvider(EnvironmentProvider):
        ...     def build_env_local(self):
        ...         return {"words": ["speech", "is", "silver"]}
        ...
        ...     def build_worker_setup_fn(self):
        ...         return self.build_env_local
        >>> WordsProvider({}).build_env_local()["words"][0]
        'speech'
    """

    def __init__(self, config: Any) -> None:
        self.config = _without_places(config)

    @abstractmethod
    def build_env_local(self) -> dict[str, Any]:
        """Build the environment for this process."""

    @abstractmethod
    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return a function that builds the environment inside a worker.

        It is sent to the workers, so it should carry a config and build large things itself:
        more than about 1 MB is refused.
        """


def _without_places(config: Any) -> Any:
    """Return the values of what `load_config` returned: no result depends on lines of files."""
    module = sys.modules.get("espnet3.config.load")  # slow to import; else it is no such object
    is_loaded = module is not None and isinstance(config, module.LoadedConfig)
    return config.resolved() if is_loaded else config


class BuiltParts:
    """Environment that a process built for one run, for the next one that needs the same.

    One of each name: two models may not fit on one GPU.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, Any]] = {}
        self._keys: Mapping[str, str] = {}

    def expect(self, keys: Mapping[str, str] | None) -> bool:
        """Forget what a run with these keys does not need; tell whether that was all there was."""
        self._keys = keys or {}
        had_any = bool(self._kept)
        self._kept = {k: part for k, part in self._kept.items() if part[0] == self._keys.get(k)}
        return had_any and not self._kept

    def environment(self, build: Callable[[], Any]) -> Any:
        """Return the environment of the run that is expected, built as far as it is not there."""
        token = _parts.set(self)
        try:
            return self.part(_WHOLE, build)
        finally:
            _parts.reset(token)

    def part(self, name: str, build: Callable[[], Any]) -> Any:
        """Return what is kept under a name, or build it."""
        if name not in self._kept:
            value = build()
            key = self._keys.get(name)
            if not key:
                return value
            self._kept[name] = (key, value)
        return self._kept[name][1]

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()


# Set while a worker builds; a provider that is called by others builds all.
_parts: ContextVar[BuiltParts | None] = ContextVar("espnet3_parts", default=None)


def build_part(name: str, build: Callable[[], Any]) -> Any:
    """Build a part of an environment, unless this worker has it from a run before.

    For set-up functions with a method `part_keys`, which says by name what makes each part what it
    is; see `part_key`.
    """
    parts = _parts.get()
    return build() if parts is None else parts.part(name, build)


def environment_keys(
    provider: Any, setup_fn: Callable[[], Any], build: Callable[[], Any]
) -> dict[str, str]:
    """Return the keys under which workers keep what a provider builds.

    Args:
        provider: of the run.
        setup_fn: what it sends to workers.
        build: what is called: that, or its counterpart in this process.
    """
    own = getattr(setup_fn, "part_keys", None)
    whole = part_key(build, getattr(provider, "__dict__", {}))
    return {**(own() if callable(own) else {}), _WHOLE: whole}


def part_key(thing: Any, named_in: Mapping[str, Any]) -> str:
    """Return a text that is the same for equal things only; empty if there is none.

    Args:
        thing: what is built from: a config, or a function with what it carries.
        named_in: values that may name files; if one of those has changed, the key has too.
    """
    import cloudpickle

    from espnet3.config.fingerprint import flatten, named_paths  # of drivers only

    try:
        data = cloudpickle.dumps(thing)
        paths = sorted({named.path for named in named_paths(flatten(named_in, with_state=True))})
        stamps = [_stamp(path) for path in paths]
    except Exception:  # it is then built again, and what is wrong with it is said there
        return ""
    return sha256(repr((data, paths, stamps)).encode()).hexdigest()


def _stamp(path: str) -> list[tuple[str, int, int, int]]:
    """Return what tells whether a file, or one below a folder, was written since.

    Raises:
        OSError: something cannot be looked at, or there is too much.
    """
    found, todo = [], [path]
    while todo:
        name = todo.pop()
        stat = os.stat(name)
        # Not the time alone: copies may keep it.
        found.append((name, stat.st_ino, stat.st_size, stat.st_ctime_ns))
        if len(found) > _MOST_ENTRIES:
            raise OSError(f"{path} has more than {_MOST_ENTRIES} entries")
        if os.path.isdir(name) and not os.path.islink(name):
            todo += [entry.path for entry in os.scandir(name)]
    return found
