"""Devices, nodes, strategy and precision of a `trainer` block: whether Lightning knows them, and
whether this machine has them.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import set_in
from espnet3.errors import ConfigError, ResourceError, suggest

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

ALL = ("auto", "-1", -1)
"""Values of `devices` that stand for all there are."""
_GPU = ("gpu", "cuda")
# To try a training of two processes on a machine of one core is fine; this many is a mistake.
_MOST_ON_A_CORE = 4
_USUAL_STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "fsdp", "deepspeed_stage_2")
_USUAL_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")
_EXAMPLES = {
    "strategy": "strategies.DDPStrategy",
    "accelerator": "accelerators.CUDAAccelerator",
    "precision": "plugins.MixedPrecision",
}


@dataclass(frozen=True)
class Wanted:
    """What the block asks for."""

    n_devices: int
    """Processes on each node, which is also the number of GPUs if it trains on such."""
    n_nodes: int
    on_gpus: bool
    places: str = ""
    """Where it was set, as ` (set in ...)`."""

    @property
    def world_size(self) -> int:
        """Processes on all nodes together."""
        return self.n_devices * self.n_nodes

    def __str__(self) -> str:
        return (
            f"trainer.devices is {self.n_devices} and trainer.num_nodes is {self.n_nodes}"
            f"{self.places}, which makes {self.world_size} process(es)"
        )


def check_names(block: Mapping[str, Any], loaded: "LoadedConfig | None" = None) -> None:
    """Refuse an accelerator, strategy or precision that Lightning does not know.

    A mapping must have a `_target_`; an object is left to Lightning.

    Raises:
        ConfigError: with the closest word, or those that are usual.
    """
    from espnet3.trainer.lightning_internals import precision_names

    _check_word(block, "accelerator", _accelerators(), loaded)
    _check_word(block, "strategy", _strategies(), loaded, usual=_USUAL_STRATEGIES)
    _check_word(block, "precision", precision_names(), loaded, usual=_USUAL_PRECISIONS)


def _accelerators() -> list[str]:
    from lightning.pytorch.accelerators import AcceleratorRegistry

    return ["auto", "gpu", *sorted(AcceleratorRegistry.available_accelerators())]


def _strategies() -> list[str]:
    from lightning.pytorch.strategies import StrategyRegistry

    return ["auto", *StrategyRegistry.available_strategies()]


def _check_word(
    block: Mapping[str, Any],
    name: str,
    known: Collection[str],
    loaded: "LoadedConfig | None",
    *,
    usual: Collection[str] = (),
) -> None:
    value = block.get(name)
    key = f"trainer.{name}"
    where = f"{key} is {value!r}{set_in(key, loaded)}"
    if isinstance(value, Mapping) and "_target_" not in value:
        raise ConfigError(
            f"{where}, a mapping without a class. Write {name}: WORD, or give the class: "
            f"{name}: {{_target_: lightning.pytorch.{_EXAMPLES[name]}}}"
        )
    if not isinstance(value, str | int) or (name == "strategy" and value == ""):
        return  # None is Lightning's default; what is an object already is Lightning's to judge
    word = str(value)
    if (word.lower() if name == "strategy" else word) in known:
        return
    listed = ", ".join(usual or known)
    raise ConfigError(
        f"{where}, which Lightning does not have.",
        fix=f"{suggest(word, known)} {'Usual ones' if usual else 'It has'}: {listed}.",
    )


def find_wanted(
    block: Mapping[str, Any],
    n_gpus: int,
    environ: Mapping[str, str] = os.environ,
    loaded: "LoadedConfig | None" = None,
) -> Wanted | None:
    """Read the block for a machine with `n_gpus` visible GPUs, and compare the two.

    Returns:
        None for accelerators of which only Lightning knows the devices, such as a TPU.

    Raises:
        ConfigError: a number is none.
        ResourceError: there are fewer GPUs than devices, or none at all, or far fewer cores.
    """
    accelerator = block.get("accelerator", "auto")
    if accelerator not in (*_GPU, "auto", "cpu", None):
        return None
    on_gpus = accelerator in _GPU or (accelerator != "cpu" and n_gpus > 0)
    if (accelerator in _GPU or is_fsdp(block)) and n_gpus == 0:
        raise ResourceError(_no_gpu(block, environ, loaded))
    n_nodes = read_nodes(block, loaded)
    places = _places(loaded)
    if not on_gpus:
        return Wanted(_cpu_processes(block, loaded), n_nodes, on_gpus, places)
    devices = read_devices(block, loaded)
    last = max(devices) if isinstance(devices, list) else (devices or n_gpus) - 1
    if last >= n_gpus:
        raise ResourceError(_too_few(block, n_gpus, environ, loaded))
    count = len(devices) if isinstance(devices, list) else devices or n_gpus
    return Wanted(count, n_nodes, on_gpus, places)


def read_nodes(block: Mapping[str, Any], loaded: "LoadedConfig | None" = None) -> int:
    """Return `num_nodes`.

    Raises:
        ConfigError: it is no positive integer.
    """
    value = block.get("num_nodes", 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"trainer.num_nodes is {value!r}{set_in('trainer.num_nodes', loaded)}, but must be a "
            "number of machines. Write: num_nodes: 1"
        )
    return value


def read_devices(
    block: Mapping[str, Any], loaded: "LoadedConfig | None" = None
) -> int | list[int] | None:
    """Return `devices`: a number, a list of GPUs, or None for all.

    Raises:
        ConfigError: it is none of these.
    """
    value = block.get("devices", "auto")
    if value in ALL or value is None:
        return None
    numbers = value.split(",") if isinstance(value, str) else value
    try:
        if isinstance(numbers, list) and (isinstance(value, list) or len(numbers) > 1):
            found = [int(number) for number in numbers if number != ""]
            if found and min(found) >= 0:
                return found
        else:
            count = int(numbers[0] if isinstance(numbers, list) else numbers)
            if count > 0 and not isinstance(value, bool | float):
                return count
    except (TypeError, ValueError):
        pass
    raise ConfigError(
        f"trainer.devices is {value!r}{set_in('trainer.devices', loaded)}, but must be a number of "
        "devices, a list of GPUs, or auto. Write: devices: 1"
    )


def count_gpus() -> int:
    """Return how many GPUs torch can use here."""
    import torch

    if torch.backends.mps.is_available():
        return 1
    return torch.cuda.device_count()


def _cpu_processes(block: Mapping[str, Any], loaded: "LoadedConfig | None") -> int:
    devices = read_devices(block, loaded)
    if isinstance(devices, list):
        raise ConfigError(
            f"trainer.devices is {block['devices']!r}{set_in('trainer.devices', loaded)}, a list, "
            f"but on CPUs it is a number of processes. Write: devices: {len(devices)}"
        )
    n_cores = count_cores()
    if devices and devices > _MOST_ON_A_CORE * n_cores:
        raise ResourceError(
            f"trainer.devices is {devices}{set_in('trainer.devices', loaded)}: on CPUs that is a "
            f"number of processes, but only {n_cores} core(s) are visible here. "
            f"Write: devices: {n_cores}"
        )
    return devices or 1


def _places(loaded: "LoadedConfig | None") -> str:
    keys = ("trainer.devices", "trainer.num_nodes")
    found = [str(source) for key in keys if loaded and (source := loaded.find_source(key))]
    unique = list(dict.fromkeys(found))
    return f" (set in {' and '.join(unique)})" if unique else ""


def _visible(environ: Mapping[str, str]) -> str:
    return f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES')!r}"


def _no_gpu(
    block: Mapping[str, Any], environ: Mapping[str, str], loaded: "LoadedConfig | None"
) -> str:
    import torch

    key = "accelerator" if block.get("accelerator") in _GPU else "strategy"
    built = "" if torch.version.cuda or torch.version.hip else "; this torch was built without GPUs"
    way_out = "accelerator: cpu" if key == "accelerator" else "strategy: ddp"
    return (
        f"trainer.{key} is {block.get(key)!r}{set_in(f'trainer.{key}', loaded)}, but no GPU is "
        f"visible here ({_visible(environ)}{built}). Write {way_out}, or run it where nvidia-smi "
        "lists GPUs; on a cluster: espnet3 launch conf/training.yaml conf/launch_slurm.yaml"
    )


def _too_few(
    block: Mapping[str, Any],
    n_gpus: int,
    environ: Mapping[str, str],
    loaded: "LoadedConfig | None",
) -> str:
    devices = read_devices(block, loaded)
    problem = (
        f"trainer.devices is {block.get('devices')!r}{set_in('trainer.devices', loaded)}, but "
        f"{n_gpus} GPU(s) are visible here ({_visible(environ)})."
    )
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    wanted = devices if isinstance(devices, int) else len(devices or [])
    if on_node.isdigit() and int(on_node) >= wanted:
        return (
            f"{problem} The job has {on_node} on this node, but each process sees only some of "
            "them. Lightning gives each process its GPU itself: submit without --gpus-per-task and "
            f"--gpu-bind, with --gres=gpu:{wanted}"
        )
    if on_node or "SLURM_JOB_ID" in environ:
        return f"{problem} Submit with --gres=gpu:{wanted}, or write: devices: {n_gpus}"
    return f"{problem} Write devices: {n_gpus}, or make more GPUs visible."


def is_fsdp(block: Mapping[str, Any]) -> bool:
    """Tell whether the strategy shards the model with Lightning's `FSDPStrategy`."""
    strategy = block.get("strategy")
    if isinstance(strategy, Mapping):
        return str(strategy.get("_target_", "")).rpartition(".")[2] == "FSDPStrategy"
    return isinstance(strategy, str) and strategy.lower().startswith("fsdp")


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
