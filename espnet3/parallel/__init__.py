"""One function over many items: in this process, on local processes, or on any Dask cluster."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner
    from espnet3.parallel.clusters.registry import register_backend
    from espnet3.parallel.env_provider import EnvironmentProvider
    from espnet3.parallel.parallel import (
        get_client,
        get_parallel_config,
        parallel_map,
        set_parallel,
        use_parallel,
    )
    from espnet3.parallel.tasks import Failure

_HOMES = {
    "BaseRunner": "base_runner",
    "EnvironmentProvider": "env_provider",
    "Failure": "tasks",
    "get_client": "parallel",
    "get_parallel_config": "parallel",
    "parallel_map": "parallel",
    "register_backend": "clusters.registry",
    "set_parallel": "parallel",
    "use_parallel": "parallel",
}

__all__ = [
    "BaseRunner",
    "EnvironmentProvider",
    "Failure",
    "get_client",
    "get_parallel_config",
    "parallel_map",
    "register_backend",
    "set_parallel",
    "use_parallel",
]


def __getattr__(name: str) -> Any:
    # Lazily: worker processes import this package, and must start at once.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"espnet3.parallel.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
