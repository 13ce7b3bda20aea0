"""The `trainer` block as it is written: its names, and its devices, nodes and strategy.

Apart from the models of `config`: a misspelt key is reported before pydantic builds any of them,
which takes longer than all else. Devices are checked against Lightning and against this machine.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.config.advice import did_you_mean, raise_together
from espnet3.config.sources import join_key, names_places
from espnet3.config.targets import signature_at
from espnet3.errors import ConfigError, ResourceError, suggest
from espnet3.text import count

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


KEY = "trainer"


def trainer_block(loaded: "LoadedConfig") -> dict[str, Any]:
    """Return the resolved `trainer` block as plain values.

    Raises:
        ConfigError: it is no mapping.
    """
    values = loaded.plain().get(KEY)
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{KEY} is {values!r:.60}{loaded.set_in(KEY)}, but must be a mapping of Lightning's "
            "arguments.",
            fix="Write: trainer: {accelerator: auto, devices: 1, max_epochs: 10}",
        )
    return dict(values)


@names_places
def check_trainer_names(loaded: "LoadedConfig") -> None:
    """Refuse names in the block that are no arguments of Lightning's `Trainer`.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    raise_together(unknown_names(loaded))


def unknown_names(loaded: "LoadedConfig") -> list[ConfigError]:
    """Return an error for each name in the block that is no argument of Lightning's `Trainer`."""
    known, block = trainer_arguments(), trainer_block(loaded)
    unknown = {name: value for name, value in block.items() if name not in known}
    return [_unknown(join_key(KEY, name), value, known) for name, value in unknown.items()]


def _unknown(key: str, value: Any, known: Collection[str]) -> ConfigError:
    otherwise = "See the arguments of lightning.pytorch.Trainer."
    return ConfigError(
        key=key,
        problem="is no argument of the trainer",
        # A function, because only `names_places` knows the config that the hint depends on.
        fix=lambda loaded: did_you_mean(key, value, known, loaded) or otherwise,
    )


def trainer_arguments() -> frozenset[str]:
    """Return the names of the arguments of Lightning's `Trainer`."""
    # From the installed version: a list of our own would refuse what a newer Lightning adds.
    signature = signature_at("lightning.pytorch.Trainer")
    assert signature is not None  # it is written in Python
    return frozenset(signature.parameters)


ALL = ("auto", "-1", -1)
"""Values of `devices` that stand for all there are."""
_DEVICES = "trainer.devices"
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
    """Devices and nodes that the `trainer` block asks for."""

    n_devices: int
    """Processes on each node, which is also the number of GPUs if it trains on such."""
    n_nodes: int
    on_gpus: bool

    @property
    def world_size(self) -> int:
        """Processes on all nodes together."""
        return self.n_devices * self.n_nodes

    @property
    def key(self) -> str:
        """The setting to name the place of, in errors about the number of processes."""
        return "trainer.num_nodes" if self.n_nodes > 1 else "trainer.devices"

    def __str__(self) -> str:
        return (
            f"trainer.devices is {self.n_devices} and trainer.num_nodes is {self.n_nodes}, "
            f"which makes {count(self.world_size, 'process')}"
        )


def check_names(block: Mapping[str, Any]) -> None:
    """Refuse an accelerator, strategy or precision that Lightning does not know.

    A mapping must have a `_target_`; an object is left to Lightning.

    Raises:
        ConfigError: with the closest word, or those that are usual.
    """
    from espnet3.trainer.lightning_internals import precision_names

    _check_word(block, "accelerator", _accelerators())
    _check_word(block, "strategy", _strategies(), _USUAL_STRATEGIES)
    _check_word(block, "precision", precision_names(), _USUAL_PRECISIONS)


def _accelerators() -> list[str]:
    from lightning.pytorch.accelerators import AcceleratorRegistry

    # `gpu` stands for whichever kind there is, and is in no registry.
    return ["auto", "gpu", *sorted(AcceleratorRegistry.available_accelerators())]


def _strategies() -> list[str]:
    from lightning.pytorch.strategies import StrategyRegistry

    return ["auto", *StrategyRegistry.available_strategies()]


def _check_word(
    block: Mapping[str, Any], name: str, known: Collection[str], usual: Collection[str] = ()
) -> None:
    value, key = block.get(name), f"trainer.{name}"
    if isinstance(value, Mapping) and "_target_" not in value:
        raise ConfigError(
            key=key,
            value=value,
            problem="a mapping without a class",
            fix=f"Write {name}: WORD, or give the class: "
            f"{name}: {{_target_: lightning.pytorch.{_EXAMPLES[name]}}}",
        )
    if not isinstance(value, str | int) or (name == "strategy" and value == ""):
        return  # None is Lightning's default; what is an object already is Lightning's to judge
    word = str(value)
    # Lightning folds the case of strategies, and of nothing else.
    if (word.lower() if name == "strategy" else word) in known:
        return
    listed = ", ".join(usual or known)
    raise ConfigError(
        key=key,
        value=value,
        problem="which Lightning does not have",
        fix=f"{suggest(word, known)} {'Usual ones' if usual else 'It has'}: {listed}.",
    )


def find_wanted(
    block: Mapping[str, Any], n_gpus: int, environ: Mapping[str, str] = os.environ
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
        raise _no_gpu(block, environ)
    n_nodes = read_nodes(block)
    if not on_gpus:
        return Wanted(_cpu_processes(block), n_nodes, on_gpus)
    devices = read_devices(block)
    last = max(devices) if isinstance(devices, list) else (devices or n_gpus) - 1
    if last >= n_gpus:
        raise _too_few(block, n_gpus, environ)
    count = len(devices) if isinstance(devices, list) else devices or n_gpus
    return Wanted(count, n_nodes, on_gpus)


def read_nodes(block: Mapping[str, Any]) -> int:
    """Return `num_nodes`.

    Raises:
        ConfigError: it is no positive integer.
    """
    value = block.get("num_nodes", 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            key="trainer.num_nodes",
            value=value,
            problem="but must be a number of machines",
            fix="Write: num_nodes: 1",
        )
    return value


def read_devices(block: Mapping[str, Any]) -> int | list[int] | None:
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
            # A comma, even at the end, makes a list of GPUs for Lightning: "0," is the first one.
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
        key=_DEVICES,
        value=value,
        problem="but must be a number of devices, a list of GPUs, or auto",
        fix="Write: devices: 1",
    )


def count_gpus() -> int:
    """Return how many GPUs torch can use here."""
    import torch

    # A Mac has one, which torch does not count.
    if torch.backends.mps.is_available():
        return 1
    return torch.cuda.device_count()


def _cpu_processes(block: Mapping[str, Any]) -> int:
    devices = read_devices(block)
    if isinstance(devices, list):
        raise ConfigError(
            key=_DEVICES,
            value=block["devices"],
            problem="a list, but on CPUs it is a number of processes",
            fix=f"Write: devices: {len(devices)}",
        )
    n_cores = count_cores()
    if devices and devices > _MOST_ON_A_CORE * n_cores:
        raise ResourceError(
            key=_DEVICES,
            value=devices,
            problem=": on CPUs that is a number of processes, but this one sees only "
            f"{count(n_cores, 'core')}",
            fix=f"Write: devices: {n_cores}",
        )
    return devices or 1  # as Lightning's auto on CPUs


def _visible(environ: Mapping[str, str]) -> str:
    return f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES')!r}"


def _no_gpu(block: Mapping[str, Any], environ: Mapping[str, str]) -> ResourceError:
    import torch

    key = "accelerator" if block.get("accelerator") in _GPU else "strategy"
    built = "" if torch.version.cuda or torch.version.hip else "; this torch was built without GPUs"
    way_out = "accelerator: cpu" if key == "accelerator" else "strategy: ddp"
    return ResourceError(
        key=f"trainer.{key}",
        value=block.get(key),
        problem=f"but no GPU is visible here ({_visible(environ)}{built})",
        fix=f"Write {way_out}, or run it where nvidia-smi lists GPUs; on a cluster: "
        "espnet3 launch conf/training.yaml conf/launch_slurm.yaml",
    )


def _too_few(block: Mapping[str, Any], n_gpus: int, environ: Mapping[str, str]) -> ResourceError:
    devices = read_devices(block)
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    wanted = devices if isinstance(devices, int) else len(devices or [])
    if on_node.isdigit() and int(on_node) >= wanted:
        way_out = (
            f"The job has {on_node} on this node, but each process sees only some of them. "
            "Lightning gives each process its GPU itself: submit without --gpus-per-task and "
            f"--gpu-bind, with --gres=gpu:{wanted}"
        )
    elif on_node or "SLURM_JOB_ID" in environ:
        way_out = f"Submit with --gres=gpu:{wanted}, or write: devices: {n_gpus}"
    else:
        way_out = f"Write devices: {n_gpus}, or make more GPUs visible."
    return ResourceError(
        key=_DEVICES,
        value=block.get("devices"),
        problem=f"but this process sees {count(n_gpus, 'GPU')} ({_visible(environ)})",
        fix=way_out,
    )


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
