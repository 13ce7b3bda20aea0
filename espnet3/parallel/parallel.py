"""The active `parallel` config, clients for it, and a parallel `map`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

# None is the default config. The model is imported when it is needed: workers import this module
# with the user's, and pydantic would take longer to start than all the rest.
_active: "ParallelConfig | None" = None


def set_parallel(config: Any) -> None:
    """Set where runners run from now on.

    Args:
        config: the `parallel` block, as dict or DictConfig; it is copied. What `load_config`
            returns will do as well, and lets errors name file and line. None means the default:
            one worker, in this process.

    Raises:
        ConfigError: naming each wrong key and what to write.

    Example:
        >>> set_parallel({"env": "local", "n_workers": 8})
        >>> get_parallel_config().n_workers
        8
        >>> set_parallel(None)
    """
    global _active
    _active = as_parallel_config(config)


def get_parallel_config() -> "ParallelConfig":
    """Return the active config; it is frozen."""
    return as_parallel_config(_active)


@contextmanager
def use_parallel(config: Any) -> Iterator["ParallelConfig"]:
    """Set where runners run inside the block, and restore it afterwards.

    Local workers and actors of Ray that one call has started serve the next ones too, until the
    block ends; for an equal provider, they also use again what they have built.

    Example:
        >>> with use_parallel({"env": "local", "n_workers": 2}) as config:
        ...     config.n_workers
        2
    """
    global _active
    from espnet3.parallel.open_pool import keep_workers

    # Before the exchange: after an error the active config is as it was.
    checked = as_parallel_config(config)
    with keep_workers(checked):
        previous, _active = _active, checked
        try:
            yield checked
        finally:
            _active = previous


def as_parallel_config(config: Any) -> "ParallelConfig":
    """Check a `parallel` block; a checked one is returned as it is."""
    from espnet3.config.schema import validate
    from espnet3.parallel.config import ParallelConfig

    if isinstance(config, ParallelConfig):
        return config
    load = sys.modules.get("espnet3.config.load")  # the import of OmegaConf takes a while
    if load is not None and isinstance(config, load.LoadedConfig):
        return validate(
            ParallelConfig, config.config.get("parallel"), prefix="parallel", loaded=config
        )
    if isinstance(config, Mapping) and "parallel" in config:
        raise ConfigError(
            "set_parallel() got a whole config.",
            fix="Give it the block: set_parallel(config.parallel)",
        )
    return validate(ParallelConfig, config, prefix="parallel")


@contextmanager
def get_client(source: Any = None, *, setup_fn: Callable[[], Any] | None = None) -> Iterator[Any]:
    """Connect to a Dask cluster of the active config; close both at the end of the block.

    Args:
        source: what to connect to, or to set up: nothing (the active config), a config, the
            address of a scheduler, a `Client` that is open already (and stays open), a
            `WorkerPlugin` for the active config's workers, or a set-up function.
        setup_fn: run once in each worker; the dict it returns is passed by name to the functions
            that `parallel_map` runs, as far as they take it.

    Yields:
        A `distributed.Client`.
    """
    from espnet3.parallel.open_pool import open_client

    plugin, target, setup_fn = _sort_out(source, setup_fn)
    if target is None:
        target = get_parallel_config()
    with open_client(target, plugin=plugin, setup_fn=setup_fn) as client:
        yield client


def _sort_out(source: Any, setup_fn: Callable[[], Any] | None) -> tuple[Any, Any, Any]:
    """Tell a plugin, a set-up function, and what to connect to from each other."""
    from distributed import Client, WorkerPlugin

    if source is None or isinstance(source, Client | str):
        return None, source, setup_fn
    if isinstance(source, WorkerPlugin) or (callable(getattr(source, "setup", None))):
        return source, None, setup_fn
    if callable(source):
        if setup_fn is not None:
            raise ConfigError(
                "get_client() got two set-up functions.", fix="Give one: setup_fn=..."
            )
        return None, None, source
    return None, as_parallel_config(source), setup_fn


def parallel_map(fn: Callable[..., Any], items: Iterable[Any], client: Any = None) -> list[Any]:
    """Apply a function to each item, in parallel, and return the results in order.

    Runs on the given client, else on that of the enclosing `get_client`, else as the active config
    says. The first error stops all and is raised with item, host and traceback.

    Example:
        >>> parallel_map(str.upper, ["a", "b"])
        ['A', 'B']
    """
    from espnet3.parallel.driver import map_in_memory
    from espnet3.parallel.open_pool import client_for, enclosing_client

    config, enclosing = get_parallel_config(), enclosing_client()
    setup_fn = enclosing.setup_fn if enclosing and client in (None, enclosing.client) else None
    client = client_for(config) if client is None else client
    return map_in_memory(fn, list(items), setup_fn or dict, config, client)
