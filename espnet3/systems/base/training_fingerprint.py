"""Fingerprint of a training: settings, files, code and data, key by key.

Places are not results: a path below `exp_dir`, `data_dir` and the like is described by that name,
so that a recipe that was moved, with the same content, is the same recipe.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from espnet3.config.fingerprint import digest, files_in, flatten
from espnet3.config.redact import REDACTED, digest_secret, redact
from espnet3.config.targets import find_definition, is_ours_alone
from espnet3.parallel.identity import code_in, describe_modules, is_below, modules_above
from espnet3.systems.base.given_parts import NOTHING_GIVEN, GivenParts, is_own

if TYPE_CHECKING:
    pass

PLACES = ("exp_dir", "inference_dir", "stats_dir", "dataset_dir", "data_dir", "recipe_dir")
"""Keys that say where something is."""

_NOT_RESULTS = (
    *PLACES, "exp_tag", "vars", "num_device", "num_nodes", "device", "num_threads",
    # Of other stages. What they make counts by its content.
    "create_dataset", "collect_stats", "metrics", "report", "pack", "upload", "dataset.test",
    # How long, how often it is saved, what is kept and shown.
    "resume", "accept_changes", "fit", "checkpoint", "best_model_criterion", "launch",
    "max_nonfinite_batches",
    *(
        f"trainer.{name}"
        for name in (
            "max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "fast_dev_run",
            "devices", "num_nodes", "accelerator", "strategy", "default_root_dir",
            "logger", "log_every_n_steps", "enable_progress_bar", "enable_model_summary",
            "enable_checkpointing", "profiler", "num_sanity_val_steps", "detect_anomaly",
            "inference_mode", "barebones", "model_registry",
        )
    ),
    *(
        f"dataloader.{split}.{name}"
        for split in ("train", "valid")
        for name in (
            "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "timeout",
            "multiprocessing_context", "on_error", "max_errors",
        )
    ),
)  # fmt: skip
"""Where, how long and how fast: these may differ between two calls of the same training."""

# Of Lightning's own: they end a training or show it, and change no step of it.
_WATCHERS = re.compile(
    r"(lightning|pytorch_lightning|lightning\.pytorch)\..*\.(EarlyStopping|Timer|\w*ProgressBar|"
    r"LearningRateMonitor|DeviceStatsMonitor|\w*ModelSummary|ThroughputMonitor|ModelCheckpoint)"
)
_PRECISIONS = {"32": "32-true", "64": "64-true", "16": "16-mixed", "bf16": "bf16-mixed"}
DEFAULTS = {"seed": 0, "trainer.accumulate_grad_batches": 1, "trainer.precision": "32-true"}
"""What counts where a training config sets nothing."""
_NAMED_FUNCTIONS = ("collate_fn", "worker_init_fn", "preprocessor", "transform")
_MOST_AUDIO_FILES = 2000
_BLOCK_BYTES = 4096


@dataclass(frozen=True)
class TrainingDescription:
    """Settings and files that a requested training depends on."""

    fingerprint: dict[str, Any]
    """Flat, JSON-safe, without secrets."""
    paths: dict[str, str] = field(default_factory=dict)
    """Files and folders that settings name, by key."""
    sets: dict[str, Any] | None = None
    """The datasets `train` and `valid`, if they were built."""
    random_state: Any = None
    """As their building left it, for `set_random_state`: the model draws on from there."""

    def files(self) -> dict[str, dict[str, Any]]:
        """Return the identity of each file, by key."""
        return files_in(self.paths)


def describe_training_run(
    values: Mapping[str, Any], *, with_inputs: bool = True, given: GivenParts = NOTHING_GIVEN
) -> TrainingDescription:
    """Describe a training as its config, its code and its data are now.

    Args:
        values: the training config.
        with_inputs: look at files and data as well; without, only at what no stage makes.
        given: model and data that come as objects.

    Raises:
        EspnetError: a dataset cannot be built.
    """
    described = describe_values(values) | given.describe()
    others = given.code()
    if not with_inputs:
        return TrainingDescription({**described, **_describe_code(values, {}, others)})
    sets, state = _build_sets(values, given)
    described |= {**_describe_code(values, sets, others), **_describe_data(sets)}
    return TrainingDescription(described, _paths_in(values, sets), sets, state)


def _build_sets(values: Mapping[str, Any], given: GivenParts) -> tuple[dict[str, Any], Any]:
    """Build the datasets as the training does; return them with the random state they leave."""
    from espnet3.systems.base.datasets import build_sets

    had_torch = _torch() is not None
    with _seeded(values):
        sets = build_sets(values, given)
        state = _random_state()
    if _torch() is not None and not had_torch:
        return _build_sets(values, given)  # it came with their code, and was not seeded
    return sets, state


def describe_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the weights depend on, flat; a secret is a digest."""
    flat = _settings(config)
    for key, value in DEFAULTS.items():
        flat.setdefault(key, value)
    precision = str(flat["trainer.precision"])
    flat["trainer.precision"] = _PRECISIONS.get(precision, precision)
    shown = redact(flat)
    places = _places(config)

    def described(key: str, value: Any) -> Any:
        # Only a secret differs from its redacted form.
        if shown[key] == value:
            return _placed(value, places)
        return REDACTED if is_unknown(value) else digest_secret(str(value))

    return {key: described(key, value) for key, value in flat.items()}


def is_unknown(value: Any) -> bool:
    """Tell whether a value of an older record was a secret, so that it cannot be compared."""
    return isinstance(value, str) and REDACTED in value


def is_of_results(key: str) -> bool:
    """Tell whether the weights depend on a setting, as far as its key shows."""
    from espnet3.systems.base.inference_config import KEYS

    of_inference = (name for name in KEYS if name not in ("model", "dataset"))
    return not is_below(key, (*_NOT_RESULTS, *of_inference))


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    from espnet3.components.data.loader_config import LoaderConfig

    kept = {key: value for key, value in config.items() if not _is_parallel_block(str(key), value)}
    # A single name and a list of one mean the same.
    if isinstance(kept.get("freeze"), str):
        kept["freeze"] = [kept["freeze"]]
    trainer = kept.get("trainer")
    if isinstance(trainer, Mapping) and isinstance(trainer.get("callbacks"), list):
        callbacks = [one for one in trainer["callbacks"] if not _is_watcher(one)]
        kept["trainer"] = {**trainer, "callbacks": callbacks}
    defaults = {name: known.default for name, known in LoaderConfig.model_fields.items()}
    return {
        key: value
        for key, value in flatten(kept).items()
        if is_of_results(key)
        and value not in (None, "{}", "[]")
        and not _is_default(key, value, defaults)
    }


def _is_default(key: str, value: Any, of_loader: Mapping[str, Any]) -> bool:
    """Tell whether a setting is spelt out that would be the same without."""
    block, _, name = key.rpartition(".")
    if block in ("dataloader.train", "dataloader.valid"):
        own = block.endswith("train") if name == "shuffle" else of_loader.get(name)
        return own is not None and type(own) is type(value) and own == value
    is_weight = re.fullmatch(r"dataset\.train\.\d+\.weight", key) is not None
    return (is_weight and value == 1) or (key == "scheduler_interval" and value == "step")


def _is_parallel_block(key: str, value: Any) -> bool:
    """Tell `parallel_gpu: {env: ...}` from `parallel_wavegan`, which is a model."""
    is_empty = value is None or value == {}
    is_block = isinstance(value, Mapping) and "env" in value
    return key == "parallel" or (key.startswith("parallel_") and (is_block or is_empty))


def _is_watcher(callback: Any) -> bool:
    target = callback.get("_target_") if isinstance(callback, Mapping) else None
    return isinstance(target, str) and _WATCHERS.fullmatch(target) is not None


def _places(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the folders of a config with their names, the innermost first."""
    found = [(os.path.normpath(str(config[key])), key) for key in PLACES if config.get(key)]
    return sorted(
        ((folder, key) for folder, key in found if folder != "."),
        key=lambda pair: len(pair[0]),
        reverse=True,
    )


def _placed(value: Any, places: Iterable[tuple[str, str]]) -> Any:
    """Return a path below one of the places as `{exp_dir}/x`, and others as they are."""
    if not isinstance(value, str) or os.sep not in value:
        return value
    path = os.path.normpath(value)
    for folder, key in places:
        for start in {folder, os.path.abspath(folder)}:
            # With a separator, as /data is also the beginning of /data2.
            if path == start or path.startswith(start.rstrip(os.sep) + os.sep):
                return f"{{{key}}}{path[len(start.rstrip(os.sep)) :]}"
    here = os.getcwd()
    return os.path.relpath(path, here) if path.startswith(here + os.sep) else value


def _paths_in(values: Mapping[str, Any], sets: Mapping[str, Any]) -> dict[str, str]:
    """Return the files and folders whose content counts, by key."""
    described = tuple(f"{key}.data_src_args" for key, one in _leaves(sets) if _has_fingerprint(one))
    exp_dir = os.path.abspath(str(values.get("exp_dir") or "."))
    return {
        key: value
        for key, value in _settings(values).items()
        if isinstance(value, str)
        and not is_below(key, described)
        # Folders around exp_dir change with every run.
        and not (exp_dir + os.sep).startswith(os.path.abspath(value) + os.sep)
        and not (key.startswith("trainer.") and os.path.isdir(value))  # what callbacks write to
        and _exists(value)
    }


def _exists(path: str) -> bool:
    try:
        return bool(path) and os.path.exists(path)
    except (OSError, ValueError):  # text longer than a name may be, or with a null byte
        return False


@contextmanager
def _seeded(values: Mapping[str, Any]) -> Iterator[None]:
    """Seed as the training does before it builds its data, for datasets that draw numbers."""
    import random

    import numpy as np

    seed = values.get("seed")
    value = seed if isinstance(seed, int) and seed >= 0 else 0
    before = _random_state()
    random.seed(value)
    # NumPy refuses seeds of more than 32 bits.
    np.random.seed(value % 2**32)
    if torch := _torch():
        torch.manual_seed(value)
    try:
        yield
    finally:
        set_random_state(before)


def _random_state() -> Any:
    import random

    import numpy as np

    torch = _torch()
    return random.getstate(), np.random.get_state(), torch and torch.get_rng_state()


def set_random_state(state: Any) -> None:
    """Let Python, NumPy and torch draw on from a state."""
    import random

    import numpy as np

    random.setstate(state[0])
    np.random.set_state(state[1])
    if state[2] is not None:
        _torch().set_rng_state(state[2])


def _torch() -> Any:
    return sys.modules.get("torch")  # not imported for this alone


def _describe_code(
    values: Mapping[str, Any], sets: Mapping[str, Any], others: Iterable[Any] = ()
) -> dict[str, Any]:
    from espnet3.components.data.dataset import CombinedDataset

    own = [{"_target_": path} for path in sorted(set(_own_targets(_of_training(values))))]
    built = [one for one in sets.values() if one is not None and len(one)]
    config = {"model": own, "recipe_dir": values.get("recipe_dir")}
    dataset = CombinedDataset(built) if built else None
    described = describe_targets(config, dataset, others)
    return {f"code.{key}": value for key, value in described.items()}


def _of_training(values: Mapping[str, Any]) -> dict[str, Any]:
    dataset = values.get("dataset")
    kept = {key: value for key, value in values.items() if not is_below(key, _NOT_RESULTS)}
    if isinstance(dataset, Mapping):
        kept["dataset"] = {key: value for key, value in dataset.items() if key != "test"}
    return kept


def _own_targets(values: Any) -> Iterator[str]:
    """Yield the dotted paths of code that is not installed as a package."""
    from espnet3.config.targets import locate

    for path in _dotted_paths(values):
        definition = find_definition(path)
        if definition is not None and definition.is_intact:
            continue
        try:
            thing = locate(path)
        except Exception:  # the stage's own checks have the words for it
            continue
        if is_own(thing):
            yield path


def _dotted_paths(values: Any) -> Iterator[str]:
    if isinstance(values, list):
        for value in values:
            yield from _dotted_paths(value)
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        is_function = key in _NAMED_FUNCTIONS and isinstance(value, str) and "." in value
        if isinstance(value, str) and (key == "_target_" or is_function):
            yield value
        else:
            yield from _dotted_paths(value)


def _describe_data(sets: Mapping[str, Any]) -> dict[str, Any]:
    from espnet3.components.data.dataset import fingerprint_of

    described: dict[str, Any] = {}
    for key, dataset in _leaves(sets):
        described[f"{key}.content"] = fingerprint_of(dataset)
        described[f"{key}.n_items"] = len(dataset)
        audio = _digest_audio(dataset)
        if audio is not None:
            described[f"{key}.audio"] = audio
    return described


def _leaves(sets: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the datasets without what we wrap around them, which settings and code describe."""
    from espnet3.components.data.dataset import CombinedDataset, TransformedDataset

    for split, whole in sets.items():
        if whole is None:
            continue
        parts = [(f"dataset.{split}", whole)]
        if isinstance(whole, CombinedDataset):
            parts = list(zip(whole.names, whole.datasets, strict=True))
        for key, part in parts:
            while isinstance(part, TransformedDataset):
                part = part.dataset
            yield key, part


def _has_fingerprint(dataset: Any) -> bool:
    return getattr(dataset, "fingerprint", None) is not None


def _digest_audio(dataset: Any) -> str | None:
    """Return a digest of sizes and parts of audio files; None if a dataset does not list them.

    Beginning, middle and end of at most 2,000 files, evenly spaced: what was made again with
    another rate, gain or voice shows; a click in one of many files does not.
    """
    from espnet3.components.data.audio import in_threads

    if not callable(files := getattr(dataset, "audio_files", None)):
        return None
    return digest({"files": in_threads(_glance, files(_MOST_AUDIO_FILES))})


def _glance(path: str | os.PathLike[str]) -> str:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            hasher = hashlib.sha256(str(size).encode())
            # A set, as in a small file these coincide.
            for start in sorted({0, max(0, size // 2), max(0, size - _BLOCK_BYTES)}):
                file.seek(start)
                hasher.update(file.read(_BLOCK_BYTES))
    except OSError as error:
        return f"unreadable: {error.errno}"  # training reports it when it reads the file
    return hasher.hexdigest()


# The provider and the runner themselves are described by every run.
_BLOCKS = ("model", "dataset", "output_artifacts")


def describe_targets(
    config: Mapping[str, Any],
    dataset: Any,
    others: Iterable[Any] = (),
    *,
    blocks: Sequence[str] = _BLOCKS,
) -> dict[str, Any]:
    """Return what each definition says of the user's own modules that a config names.

    Args:
        config: in plain containers.
        dataset: what is read; what it wraps as `dataset` or `datasets` is looked into, and the
            steps that its samples pass through.
        others: classes and functions that count as well, although neither of the two names them.
        blocks: dotted keys of the config whose `_target_`s count; a text there is one itself.
    """
    from espnet3.config.targets import locate

    paths = {path for block in blocks for path in _targets_in(_at(config, block))}
    # Older configs have it in the runner block.
    paths.update(filter(None, [config.get("output_fn"), _at(config, "runner.output_fn")]))
    # What is ESPnet3's alone adds nothing to the description, so that it need not be imported.
    things = [locate(path) for path in sorted(paths) if not is_ours_alone(path)]
    for layer in _layers(dataset):
        things += [type(layer), *_steps(layer)]
    return describe_modules([*things, *others], modules_above(paths))


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str) and "." in value:
        return {"_target_": value}
    is_one_test_set = key == "dataset" and "test_set" in config and isinstance(value, Mapping)
    # Configs of inference may have the training sets as well.
    return {k: v for k, v in value.items() if k not in _TRAINING} if is_one_test_set else value


_TRAINING = ("train", "valid")


def _targets_in(values: Any) -> Iterator[str]:
    if isinstance(values, Mapping):
        if isinstance(values.get("_target_"), str):
            yield values["_target_"]
        values = list(values.values())
    if isinstance(values, list):
        for value in values:
            yield from _targets_in(value)


def _layers(dataset: Any) -> Iterator[Any]:
    yield dataset
    inner = getattr(dataset, "dataset", None)
    if inner is not None and hasattr(inner, "__getitem__"):
        yield from _layers(inner)
    for part in getattr(dataset, "datasets", ()):
        yield from _layers(part)


def _steps(layer: Any) -> Iterator[Any]:
    """Yield the functions of a sample; a config names most of them without a `_target_`."""
    kept = getattr(layer, "__dict__", {})
    for name in {"transform", "preprocessor", *kept}:
        if name not in ("dataset", "datasets"):
            yield from code_in(getattr(layer, name, None), depth=1)
