"""Backend `ray`: the connection to a Ray cluster, or to a Ray of one's own on this machine.

The workers themselves are actors: `espnet3/parallel/ray_pool.py`.
"""

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from math import ceil, floor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from espnet3.errors import ConfigError, MissingExtraError, ResourceError, suggest
from espnet3.logs import quiet
from espnet3.parallel.clusters import gpus
from espnet3.parallel.signals import handler_kept
from espnet3.text import count, folded

if TYPE_CHECKING:
    from espnet3.parallel.clusters.registry import Backend
    from espnet3.parallel.config import ParallelConfig

OPTIONS = ("address", "num_cpus", "num_gpus", "resources", "runtime_env", "timeout")
INSTALL = "pip install -c constraints.txt -e '.[ray]'"
_AUTO = "auto"
_STORE_BYTES = 256 << 20  # of results on their way to the driver; beyond it, Ray uses the disk
# What an HTTP/2 client says first, with empty settings; a server like Ray's answers with its own.
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_HTTP2_SETTINGS = 4
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0, all of Ray listens on 127.0.0.1, as it does on those systems."""
_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True)
class RayCluster:
    """An open connection to Ray, and what each worker asks of it."""

    config: "ParallelConfig"
    _opened: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """Undo what was done to open it; a Ray of the user's own program stays."""
        self._opened.close()

    def left_behind(self) -> str:
        """Say what may still be there, and how to end it."""
        if _address(self.config):
            return "Its workers end with this program; see: ray list actors"
        return "Processes of the Ray of this run may still be there. End all of yours: ray stop"

    def worker_class(self, cls: type) -> Any:
        """Return the actor class of a worker, with the resources of one."""
        import ray

        given = self.config.options
        options = {
            **{k: given[k] for k in ("num_gpus", "resources") if given.get(k)},
            **({"runtime_env": runtime_env(self.config)} if given.get("runtime_env") else {}),
            "num_cpus": _number(self.config, "num_cpus", 1),
            "max_restarts": 0,  # the pool replaces a worker: only it knows what that was doing
            "max_task_retries": 0,
            "max_concurrency": 2,  # an attempt, and the question how far it is
            # By default Ray packs workers onto few nodes.
            "scheduling_strategy": "SPREAD",
        }
        return ray.remote(**options)(cls)

    def has_working_dir(self) -> bool:
        """Tell whether `runtime_env` brings the folder that workers run in."""
        return "working_dir" in (self.config.options.get("runtime_env") or {})

    def has_room(self) -> bool:
        """Tell whether a node has what a worker asks for, be it free or not."""
        wanted = worker_resources(self.config)
        return any(_fits(wanted, node) for node in _nodes())

    def shortage(self, n_waiting: int) -> str:
        """Return why that many workers have not started, and what to do."""
        wanted = worker_resources(self.config)
        asked = _spelled(wanted)
        if not self.has_room():
            most = {k: max((node.get(k, 0.0) for node in _nodes()), default=0.0) for k in wanted}
            return (
                f"Each worker asks for {asked}, and no node of the Ray cluster has that; the most "
                f"that a node has is {_spelled(most)}. Ask for less in parallel.options, or start "
                "such a node: ray start --address=..."
            )
        free = _untyped_ray().available_resources()
        return (
            f"{count(n_waiting, 'worker')} without room: each asks for {asked}; free in the Ray "
            f"cluster: {_spelled({name: free.get(name, 0.0) for name in wanted})}. `ray status` "
            "shows the rest."
        )


def start(config: "ParallelConfig", backend: "Backend") -> NoReturn:
    """Refuse to be a Dask cluster, which is what `get_client` asks for.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        f"get_client() connects to Dask, but parallel.env is {config.env!r}.",
        fix="Give the items to a runner or to parallel_map(), which work on Ray; or, for a Dask "
        "client, write: env: dask",
    )


def open_ray(config: "ParallelConfig", *, shows_output: bool) -> RayCluster:
    """Connect to the Ray that the options name, or start one.

    Args:
        config: the block.
        shows_output: whether what workers print comes to this terminal.

    Raises:
        ConfigError: if the options are wrong.
        ResourceError: if no Ray answers, or this machine has less than the workers ask for.
    """
    check(config)
    address = _address(config)
    with ExitStack() as stack:
        stack.enter_context(quiet("ray"))  # what matters of it is said by us
        import ray

        if ray.is_initialized():  # by the user's program, which closes it
            _compare(address, ray.get_runtime_context().gcs_address)
            return RayCluster(config, stack.pop_all())
        if not shows_output:
            stack.enter_context(_deaths_unsaid())
        stack.callback(ray.shutdown)
        # ray.init() replaces the handler, and a run must end in good order on SIGTERM.
        with handler_kept(signal.SIGTERM):
            if address:
                _connect(address, config, shows_output)
            else:
                _start(config, shows_output, stack)
        return RayCluster(config, stack.pop_all())


def check(config: "ParallelConfig") -> None:
    """Check the options, that Ray is installed, and GPUs of this machine if it starts here.

    Raises:
        ConfigError: if an option is wrong.
        MissingExtraError: with the line that installs Ray.
        ResourceError: if a Ray on this machine could not have the GPUs.
    """
    _check_options(config)
    if "ray" not in sys.modules and find_spec("ray") is None:
        raise MissingExtraError(
            "parallel.env is 'ray', which needs the package 'ray', and that is not installed.",
            fix=f"In your clone of ESPnet3: {INSTALL}",
        )
    if config.options.get("runtime_env"):  # else Ray, which is slow to import, is not needed here
        _check_runtime_env(config)
    if not _address(config):
        _check_own_gpus(config)


def worker_resources(config: "ParallelConfig") -> dict[str, float]:
    """Return what each worker asks for, by the names that Ray gives to resources."""
    own: Mapping[str, float] = config.options.get("resources") or {}
    asked = {
        "CPU": _number(config, "num_cpus", 1),
        "GPU": _number(config, "num_gpus", 0),
        **{str(name): float(value) for name, value in own.items()},
    }
    return {name: value for name, value in asked.items() if value}


def runtime_env(config: "ParallelConfig") -> dict[str, Any]:
    """Return that of each worker, with texts for variables: YAML has numbers, Ray takes none."""
    given = dict(config.options.get("runtime_env") or {})
    if isinstance(given.get("env_vars"), Mapping):
        given["env_vars"] = {str(name): _text(value) for name, value in given["env_vars"].items()}
    return given


def _text(value: Any) -> Any:
    # true may mean "true" or "True": the user must say.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


def is_started_here(config: "ParallelConfig") -> bool:
    """Tell whether a Ray is started on this machine for the run."""
    return not _address(config)


def meet(config: "ParallelConfig") -> str:
    """Return where a Ray answers; empty if one would be started here.

    Raises:
        ResourceError: if there should be one and is none.
    """
    address = _address(config)
    if not address:
        return ""
    place = _running_here() if address == _AUTO else address
    if place:
        _knock(place, _number(config, "timeout", 10))
        return place
    raise ResourceError(
        "parallel.options.address is 'auto', but no Ray runs on this machine.",
        fix="Start one: ray start --head; or leave out the address, and one is started for the run",
    )


def _check_options(config: "ParallelConfig") -> None:
    unknown = [name for name in config.options if name not in OPTIONS]
    if unknown:
        raise ConfigError(
            f"parallel.options.{unknown[0]} is no option of env: ray."
            f"{suggest(unknown[0], OPTIONS)} It takes: {', '.join(OPTIONS)}."
        )
    for name in ("num_cpus", "num_gpus", "timeout"):
        _number(config, name, 0)
    n_gpus = _number(config, "num_gpus", 0)
    if n_gpus > 1 and n_gpus != int(n_gpus):
        raise ConfigError(
            f"parallel.options.num_gpus is {n_gpus}; Ray takes parts of one GPU, or whole ones.",
            fix=f"Write: num_gpus: {ceil(n_gpus)}",
        )
    for name, example in (("resources", "{big_disk: 1}"), ("runtime_env", "{env_vars: {A: b}}")):
        value = config.options.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(
                f"parallel.options.{name} is {value!r}, which is no mapping.",
                fix=f"Write: {name}: {example}",
            )
    _check_resources(config.options.get("resources") or {})
    address = config.options.get("address")
    if address is not None and (not isinstance(address, str) or "://" in address):
        raise ConfigError(
            f"parallel.options.address is {address!r}; the driver joins the cluster itself, on one "
            "of its nodes, and not through a client server.",
            fix="Write: address: auto, and run it on a node of the cluster; or the address that "
            "`ray start --head` printed: address: 'head:6379'",
        )
    if address and address != _AUTO and not address.rpartition(":")[2].isdecimal():
        raise ConfigError(
            f"parallel.options.address is {address!r}, which has no port.",
            fix=f"Write: address: '{address}:6379'; or on a node of the cluster: address: auto",
        )


def _check_resources(resources: Mapping[str, Any]) -> None:
    for name, value in resources.items():
        own = {"CPU": "num_cpus", "GPU": "num_gpus"}.get(str(name))
        if own:
            raise ConfigError(
                f"parallel.options.resources has {name}, which has an option of its own.",
                fix=f"Write: {own}: {value}",
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ConfigError(
                f"parallel.options.resources.{name} is {value!r}, which is no number of at least "
                "0.",
                fix=f"Write: resources: {{{name}: 1}}",
            )


def _check_runtime_env(config: "ParallelConfig") -> None:
    """Let Ray judge it, which would do so only when the first worker starts, or not at all."""
    from ray.runtime_env import RuntimeEnv

    given = runtime_env(config)
    known = sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_"))
    # Plugins of a cluster may have fields of their own.
    unknown = [name for name in given if name not in known]
    if unknown and not os.environ.get("RAY_RUNTIME_ENV_PLUGINS"):
        raise ConfigError(
            f"parallel.options.runtime_env.{unknown[0]} is no field of Ray."
            f"{suggest(unknown[0], known)} It takes: {', '.join(known)}."
        )
    try:
        RuntimeEnv(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"parallel.options.runtime_env is refused by Ray: {folded(error).rstrip('.')}.",
            fix="Write it as Ray takes it: runtime_env: {env_vars: {HF_HOME: '/data/hf'}}",
        ) from error


def _number(config: "ParallelConfig", name: str, default: float) -> float:
    value = config.options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(
            f"parallel.options.{name} is {value!r}, which is no number of at least 0.",
            fix=f"Write: {name}: 1",
        )
    return float(value)


def _address(config: "ParallelConfig") -> str:
    """Return where to connect to; empty if a Ray is to be started. Ray's own variable counts."""
    given = str(config.options.get("address") or "")
    named = os.environ.get("RAY_ADDRESS", "")
    return named if named and given in ("", _AUTO) else given


def _running_here() -> str:
    """Return the address that the Ray of this machine has left in its usual place."""
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _knock(address: str, seconds: float) -> None:
    """Exchange a word: Ray itself would try again for minutes where there is none."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as link:
            link.settimeout(seconds)
            link.sendall(_HTTP2_HELLO)
            answer = link.recv(9)
        # A frame has its type in byte 3, and the first one of a server is SETTINGS.
        if answer[3:4] == bytes([_HTTP2_SETTINGS]):
            return
        reason = "something else than Ray answers there"
    except OSError as error:
        reason = folded(error)
    raise ResourceError(
        f"parallel.options.address is {address!r}, but no Ray answered there within {seconds:g} s "
        f"({reason}).",
        fix="Start one (ray start --head), give the address that it printed, or leave out the "
        "address: then one is started on this machine",
    )


def _compare(wanted: str, found: str) -> None:
    if wanted not in ("", _AUTO, found):
        raise ConfigError(
            f"parallel.options.address is {wanted!r}, but this program is connected to the Ray at "
            f"{found!r} already.",
            fix="Call ray.shutdown() before the run, or write: address: auto",
        )


def _connect(address: str, config: "ParallelConfig", shows_output: bool) -> None:
    import ray

    place = meet(config)
    try:
        ray.init(address=place, log_to_driver=shows_output, logging_level=logging.ERROR)
    except Exception as error:  # of many kinds: another version, no node here, a token is missing
        raise ResourceError(
            f"The Ray at {place} (parallel.options.address is {address!r}) cannot be used: "
            f"{folded(error)}",
            fix="The program must run on a node of the cluster, with its versions of Ray and "
            "Python; to make this machine one that only drives: "
            f"ray start --address={place} --num-cpus=0",
        ) from error


def _start(config: "ParallelConfig", shows_output: bool, stack: ExitStack) -> None:
    """Start a Ray for this run alone: on loopback, without dashboard, in a folder of its own."""
    import ray

    n_workers = config.n_workers
    wanted = worker_resources(config)
    # Short, and not in TMPDIR: Ray's sockets are in it, whose paths may have 107 characters.
    folder = tempfile.mkdtemp(prefix="e3ray-", dir="/tmp")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    stack.callback(ray.shutdown, wait_for_processes=True)  # before its folder goes
    with _own_variables():
        ray.init(
            address="local",
            num_cpus=ceil(n_workers * wanted.pop("CPU", 0)),
            num_gpus=len(gpus.visible_gpus(None)) if wanted.pop("GPU", 0) else 0,
            resources={name: value * n_workers for name, value in wanted.items()},
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=shows_output,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )


@contextmanager
def _own_variables() -> Iterator[None]:
    """Keep a Ray that is started in this block to this user and machine, and from calling home."""
    from ray._private import ray_constants

    changed = {"RAY_USAGE_STATS_ENABLED": "0", _LOOPBACK: "0"}
    if not any(os.environ.get(name) for name in _TOKEN_VARIABLES):
        # Else Ray would write one into the home, where others may be able to read it.
        changed["RAY_AUTH_TOKEN"] = _token()
    before = {name: os.environ.get(name) for name in (*changed, *_TOKEN_VARIABLES)}
    is_cluster = ray_constants.ENABLE_RAY_CLUSTER  # read from the variable at import
    os.environ.update(changed)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = is_cluster
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _deaths_unsaid() -> Iterator[None]:
    """Keep Ray from printing a page on stdout for each process that died: the pool logs it."""
    from ray._private import worker

    say = worker.print_to_stdstream
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = say


@cache  # Ray reads it once in a process
def _token() -> str:
    return secrets.token_hex(32)


def _check_own_gpus(config: "ParallelConfig") -> None:
    each = _number(config, "num_gpus", 0)
    if not each:
        return
    visible = gpus.visible_gpus(None)
    # Rounded down for each GPU: a worker's share lies on one, so of 0.4 there are two.
    room = len(visible) // int(each) if each >= 1 else len(visible) * floor(1 / each)
    if config.n_workers > room:
        advice = f"Set n_workers: {room} or make more GPUs visible."
        if not room:
            advice = "Delete num_gpus, or name a cluster that has GPUs: address: 'head:6379'"
        raise ResourceError(
            f"parallel.n_workers is {config.n_workers} with num_gpus: {each:g} each, but "
            f"{len(visible)} GPU(s) are visible "
            f"({gpus.VARIABLE}={os.environ.get(gpus.VARIABLE)!r}): room for "
            f"{count(room, 'worker')}.",
            fix=advice,
        )


def _nodes() -> list[dict[str, float]]:
    return [node["Resources"] for node in _untyped_ray().nodes() if node["Alive"]]


def _untyped_ray() -> Any:
    """Return Ray for its functions without types, whether or not it is there to be checked."""
    import ray

    return ray


def _fits(wanted: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0.0) >= value for name, value in wanted.items())


def _spelled(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in resources.items()) or "nothing"
