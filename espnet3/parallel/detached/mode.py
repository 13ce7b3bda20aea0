"""Decide whether a runner's call is synchronous or detached."""

import logging
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError
from espnet3.parallel.detached.shared import SharedWorkers

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)


def goes_on_alone(runner: "BaseRunner", config: "ParallelConfig", client: Any) -> bool:
    """Tell whether workers are submitted, and not waited for.

    Raises:
        ConfigError: if they should be, but what they need would end with this program.
    """
    if config.mode == "sync":
        return False
    name = type(runner).__name__
    if not runner.can_detach:
        logger.warning(
            "parallel.mode is 'async', but what %s returns is needed at once: it runs as with "
            "mode: sync",
            name,
        )
        return False
    if runner.output_dir is None:
        raise ConfigError(
            f"parallel.mode is 'async', but {name} has no output_dir, and results in memory end "
            f"with this program. Write: {name}(provider, output_dir=...), or parallel.mode: sync"
        )
    if client is not None and not isinstance(client, SharedWorkers):
        raise ConfigError(
            f"parallel.mode is 'async', but {name} was given a Dask client, whose workers end with "
            "this program. Leave out client and get_client(), or write parallel.mode: sync"
        )
    return True
