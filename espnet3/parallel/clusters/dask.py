"""Backend `dask`: an existing Dask scheduler."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, ResourceError, suggest
from espnet3.parallel.clusters.registry import Backend
from espnet3.text import folded

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

OPTIONS = ("address", "tls_ca_file", "tls_cert", "tls_key", "timeout")
_EXAMPLE = "options: {address: 'tcp://host:8786'}"
_TLS_EXAMPLE = "tls_ca_file: ca.pem, tls_cert: me.pem, tls_key: me.key"


class Address(str):
    """Address of a Dask scheduler, and the certificates that it asks for."""

    security: Any = None


def start(config: "ParallelConfig", backend: Backend) -> Address:
    """Return where to connect to; nothing is started.

    Raises:
        ConfigError: if the options are wrong.
        ResourceError: if no scheduler answers there within `options.timeout` (10 seconds).
    """
    address, security = _read_options(config)
    seconds = float(config.options.get("timeout", 10.0))
    # In a thread: the caller may be in an event loop already, as in a notebook.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _meet(address, security, seconds)).result()
    found = Address(address)
    found.security = security
    return found


def check(config: "ParallelConfig") -> None:
    """Check the options without contacting the scheduler.

    Raises:
        ConfigError: if they are wrong.
    """
    _read_options(config)


def _read_options(config: "ParallelConfig") -> tuple[str, Any]:
    unknown = [name for name in config.options if name not in OPTIONS]
    if unknown:
        raise ConfigError(
            f"parallel.options.{unknown[0]} is no option of env: dask."
            f"{suggest(unknown[0], OPTIONS)} It takes: {', '.join(OPTIONS)}."
        )
    address = str(config.options.get("address") or "")
    if not address:
        raise ConfigError(
            "parallel.env is 'dask', but parallel.options.address is not set. Write: " + _EXAMPLE
        )
    protocol, separator, place = address.partition("://")
    if not separator:
        protocol, place, address = "tcp", address, f"tcp://{address}"
    if (
        protocol not in ("tcp", "tls", "ws", "wss", "ucx")
        or not place.rpartition(":")[2].isdecimal()
    ):
        raise ConfigError(
            f"parallel.options.address is {config.options['address']!r}, which is not the address "
            "of a scheduler.",
            fix=f"Write protocol, host and port: {_EXAMPLE}",
        )
    return address, _security(config, address)


def _security(config: "ParallelConfig", address: str) -> Any:
    from distributed.security import Security

    names = [name for name in OPTIONS if name.startswith("tls_")]
    files = {name: str(config.options[name]) for name in names if config.options.get(name)}
    for name, file in files.items():
        if not Path(file).is_file():
            raise ConfigError(f"parallel.options.{name} is {file!r}, and there is no such file.")
    if not address.startswith("tls://"):
        if files:
            raise ConfigError(
                f"parallel.options.{next(iter(files))} is set, but the address {address!r} is "
                "without TLS.",
                fix=f"Write: address: 'tls://{address.partition('://')[2]}'",
            )
        return None
    roles = {"tls_client_cert": files.get("tls_cert"), "tls_client_key": files.get("tls_key")}
    given = {name: file for name, file in roles.items() if file}
    if "tls_ca_file" in files:
        given["tls_ca_file"] = files["tls_ca_file"]
    # What is not given may stand in Dask's own configuration.
    security: Any = Security(require_encryption=True, **given)  # type: ignore[no-untyped-call]
    if not (security.tls_ca_file and security.tls_client_cert):
        raise ConfigError(
            f"parallel.options.address is {address!r}, which needs certificates.",
            fix=f"Add to options: {_TLS_EXAMPLE}",
        )
    return security


async def _meet(address: str, security: Any, seconds: float) -> None:
    """Exchange a word with the scheduler: a port that is open may be anybody's."""
    from distributed.comm.core import connect
    from distributed.security import Security

    arguments = (security or Security()).get_connection_args("client")  # type: ignore[no-untyped-call]

    async def ask() -> Any:
        comm: Any = await connect(address, timeout=seconds, **arguments)  # type: ignore[no-untyped-call]
        try:
            await comm.write({"op": "identity", "reply": True})
            return await comm.read()
        finally:
            # Not close(), which would wait for a peer that may be no Dask at all.
            comm.abort()

    try:
        answer = await asyncio.wait_for(ask(), seconds)
    except (OSError, ValueError, TypeError, MemoryError) as error:  # bytes of another protocol
        raise _unreachable(address, error, seconds) from error
    kind = answer.get("type") if isinstance(answer, dict) else type(answer).__name__
    if kind != "Scheduler":
        raise ResourceError(
            f"parallel.options.address is {address!r}, where a Dask {kind} answers, not a "
            "scheduler.",
            fix="Give the address that `dask scheduler` prints: Scheduler at: ...",
        )


def _unreachable(address: str, error: BaseException, seconds: float) -> ResourceError:
    # Dask wraps what went wrong several times: the last cause is the one worth telling.
    reasons = []
    cause: BaseException | None = error
    while cause is not None:
        reasons.append(folded(cause) or type(cause).__name__)
        cause = cause.__cause__
    advice = (
        "Start one (dask scheduler, and dask worker ADDRESS on the machines that shall work), or "
        "give the address that it printed"
    )
    if any(word in reason.lower() for reason in reasons for word in ("ssl", "tls", "certificate")):
        advice = f"Give certificates that the scheduler accepts: {_TLS_EXAMPLE}"
    elif address.startswith("tcp://"):
        advice += "; if it was started with TLS, write tls:// and its certificates"
    return ResourceError(
        f"parallel.options.address is {address!r}, but no scheduler answered there within "
        f"{seconds:g} s ({reasons[-1]}).",
        fix=f"{advice}.",
    )
