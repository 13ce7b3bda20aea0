"""A Dask scheduler that is already running."""

from typing import TYPE_CHECKING

from espnet3.errors import ConfigError
from espnet3.parallel.clusters.table import Backend

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


def start(config: "ParallelConfig", backend: Backend) -> str:
    """Return the address to connect to; nothing is started.

    Raises:
        ConfigError: if no address is given.
    """
    address = config.options.get("address")
    if not address:
        raise ConfigError(
            "parallel.env is 'dask', but parallel.options.address is not set. Write: "
            "options: {address: 'tcp://host:8786'}"
        )
    return str(address)
