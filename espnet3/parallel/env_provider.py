"""Providers, which build the environment for a runner's `forward`."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


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
