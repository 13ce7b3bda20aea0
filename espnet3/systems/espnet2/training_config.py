"""Configs of ESPnet2: read, completed with its defaults, their paths found."""

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from espnet3.config.trust import checked_path
from espnet3.errors import ConfigError, suggest
from espnet3.systems.espnet2.package import default_config, installed_version, task_class

logger = logging.getLogger(__name__)

# Keys that name files, at the top and in blocks.
_FILES = ("token_list", "bpemodel", "non_linguistic_symbols", "stats_file", "src_token_list",
          "src_bpemodel", "transcript_token_list", "tgt_token_list", "unit_token_list", "spk2utt",
          "rir_scp", "noise_scp")  # fmt: skip
# Of the training alone; often gone when models travel.
_OF_TRAINING = ("rir_scp", "noise_scp")
# Written by ESPnet2 into the config of a training, beside the arguments of its parser.
_WRITTEN = ("version", "config", "distributed", "ngpu", "required", "print_config")

_TOKENS = "token_list"
# Blocks that say the sampling rate, and ESPnet2's default.
_RATES = {"feats_extract_conf": 22050, "frontend_conf": 16000}

LOOP_KEYS: Mapping[str, str] = {
    "optim": "optimizer", "optim_conf": "optimizer", "scheduler": "scheduler",
    "scheduler_conf": "scheduler", "max_epoch": "trainer.max_epochs",
    "accum_grad": "trainer.accumulate_grad_batches", "grad_clip": "trainer.gradient_clip_val",
    "patience": "trainer.callbacks", "best_model_criterion": "best_model_criterion",
    "keep_nbest_models": "best_model_criterion", "use_amp": "trainer.precision",
    "num_workers": "dataloader.train.num_workers", "seed": "seed",
    "batch_type": "dataloader.train", "batch_size": "dataloader.train.batch_size",
    "batch_bins": "dataloader.train.batch_seconds", "init_param": "init", "freeze_param": "freeze",
    "num_iters_per_epoch": "trainer.limit_train_batches", "log_interval": "trainer",
}  # fmt: skip
"""Keys of ESPnet2's loop, and where they stand in a training config of ESPnet3."""


def read_config(path: str | os.PathLike[str], key: str = "config") -> dict[str, Any]:
    """Read a config of ESPnet2; nothing in it is executed.

    Args:
        path: Of the YAML file.
        key: That names it, for the errors.

    Raises:
        ConfigError: It is not there, or is none.
    """
    import yaml

    file = checked_path(path)
    if not file.is_file():
        raise ConfigError(
            key=key,
            value=os.fspath(path),
            problem="which does not exist",
            fix="Give the config.yaml that ESPnet2 wrote beside the weights, such as "
            f"{key}: exp/asr_train_raw_bpe/config.yaml",
        )
    try:
        values = yaml.load(file.read_text("utf-8"), Loader=_safe_loader())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            key=key, value=str(file), problem=f"which is no YAML file ({first})", fix="Correct it."
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(
            key=key,
            value=str(file),
            problem=f"which holds a {type(values).__name__}, not keys and values",
            fix="Give a training config of ESPnet2, with keys such as encoder_conf.",
        )
    return values


def _safe_loader() -> Any:
    """Return a loader that makes plain values only, and takes tuples for lists."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    # ESPnet2 dumps some defaults as tuples of Python.
    Loader.add_constructor(
        "tag:yaml.org,2002:python/tuple",
        lambda loader, node: loader.construct_sequence(node),
    )
    return Loader


def with_defaults(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with every key that this version of ESPnet2 asks for.

    The options of a part, `encoder_conf` and the like, are those given, or none: the defaults of
    ESPnet2's own listing belong to its default encoder.
    """
    defaults = {
        key: {} if key.endswith("_conf") and isinstance(value, dict) else value
        for key, value in default_config(task).items()
    }
    return {**defaults, **values}


def unknown_keys(task: str, values: Mapping[str, Any]) -> list[str]:
    """Return keys that this version of ESPnet2 does not have."""
    known = {*default_config(task), *_WRITTEN}
    return [key for key in values if key not in known]


def refuse_unknown(task: str, keys: Iterable[str], source: str = "") -> None:
    """Refuse keys that would be ignored without a word.

    Raises:
        ConfigError: Naming the first, and the nearest key that there is.
    """
    known = default_config(task)
    for key in keys:
        where = f" of {source}" if source else ""
        raise ConfigError(
            f"{key}{where}",
            key=key,
            problem=f" is no key of the task {task} in espnet {installed_version()}.",
            fix=f"{suggest(key, known)} Delete it, or give it another name.".strip(),
        )


def warn_of_unknown(task: str, values: Mapping[str, Any], source: str) -> None:
    """Tell which keys of a config that another version wrote have no effect."""
    unknown = unknown_keys(task, values)
    if unknown:
        logger.warning(
            "%s, of espnet %s, has keys that espnet %s does not know, and which have no effect: %s",
            source, values.get("version", "of an unknown version"), installed_version(),
            ", ".join(unknown),
        )  # fmt: skip


def resolve_paths(
    values: Mapping[str, Any],
    config: Path | None,
    *,
    may_lack: Collection[str] = (),
    within: Path | None = None,
) -> dict[str, Any]:
    """Return a config whose files are found from the working folder.

    ESPnet2 writes paths relative to its recipe, which is a folder above that of the config.

    Args:
        values: Of the config.
        config: Its file; None: paths count from the working folder alone.
        may_lack: Keys whose files need not be there.
        within: The folder of a packed model: nothing outside of it is used.

    Raises:
        ConfigError: A file that it names is in none of these folders.
    """
    places = _Places(config, may_lack, within)
    # Tokens of these kinds go by a name, such as whisper_en, and not by a file.
    is_named = str(values.get("token_type")).startswith(("whisper", "hugging_face"))
    return {
        key: value if is_named and key == "bpemodel" else _resolved(key, value, places)
        for key, value in values.items()
    }


class _Places:
    """Folders in which the files of a config are searched for."""

    def __init__(self, config: Path | None, may_lack: Collection[str], within: Path | None) -> None:
        self.config = config
        self.may_lack = may_lack
        self.within = within
        above = [] if config is None else list(config.resolve().parents)
        self.roots = [one for one in above if within is None or one.is_relative_to(within)]

    def find(self, value: str) -> str | None:
        """Return a path that exists; None if there is none."""
        if self.within is None and os.path.exists(value):
            return value
        for root in self.roots:
            # An absolute path replaces the root.
            path = root / value
            if self.within is not None and not path.resolve().is_relative_to(self.within):
                continue
            if path.exists():
                return str(checked_path(path))
        return None


def _resolved(key: str, value: Any, places: _Places) -> Any:
    if isinstance(value, Mapping):
        return {name: _resolved(name, one, places) for name, one in value.items()}
    if key.rpartition(".")[2] not in _FILES or not isinstance(value, str) or not value:
        return value
    found = places.find(value)
    if found is not None:
        return found
    if key in (*_OF_TRAINING, *places.may_lack):
        return value
    config = places.config
    source = f" in {config}" if config else ""
    searched = f"from {os.getcwd()}" + (f", nor from the folders above {config}" if config else "")
    if places.within is not None:
        searched = f"inside of {places.within}, the only folder that a packed model may read"
    raise ConfigError(
        f"{key}{source} is {value!r}",
        key=key,
        problem=f"which does not exist, {searched}"
        if not os.path.isabs(value) or places.within is not None
        else "which does not exist",
        fix=f"Copy the file there, or write its path: {key}: PATH",
    )


def training_values(
    task: str,
    config: str | os.PathLike[str] | None,
    keys: Mapping[str, Any],
    *,
    may_lack: Collection[str] = (),
) -> dict[str, Any]:
    """Return the config of a training: that of a file, and above it keys of our config.

    Options of a part, `encoder_conf` and the like, are merged one by one. Token lists are read.

    Args:
        task: Of ESPnet2.
        config: The file, if there is one.
        keys: Of our config.
        may_lack: Keys whose files need not be there.

    Raises:
        ConfigError: A key is not known, or a file is missing.
    """
    values = {} if config is None else read_config(config)
    refuse_unknown(task, unknown_keys(task, values), str(config))
    refuse_unknown(task, unknown_keys(task, keys))
    for key, value in keys.items():
        below = values.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        values[key] = {**below, **value} if both else value  # type: ignore[dict-item]
    found = resolve_paths(values, None if config is None else Path(config), may_lack=may_lack)
    return with_tokens(with_defaults(task, found), os.fspath(config or "the model"))


def log_unused(values: Mapping[str, Any], source: str) -> None:
    """Tell which keys of a file are about the training, which our own config describes."""
    unused = [key for key in values if key in LOOP_KEYS]
    if unused:
        logger.info(
            "of %s the model takes its own keys; these are set in the training config: %s",
            source, ", ".join(f"{key} ({LOOP_KEYS[key]})" for key in unused),
        )  # fmt: skip
    line = batches_here(values)
    if line:
        logger.info("batches of %s: %s", source, line)


def batches_here(values: Mapping[str, Any]) -> str:
    """Return how the batches of a training config are written here; empty if it has none.

    Example:
        >>> batches_here({"batch_type": "unsorted", "batch_size": 8})
        'unsorted is dataloader.train: {batch_size: 8}'
    """
    kind = values.get("batch_type")
    if kind is None:
        return ""
    size = f"batch_size: {values.get('batch_size', 20)}"
    if kind == "unsorted":
        return f"unsorted is dataloader.train: {{{size}}}"
    if kind == "sorted":
        return f"sorted is dataloader.train: {{{size}, max_padding: 0.08}}"
    if kind == "folded":
        return (
            f"folded is dataloader.train: {{{size}, batch_seconds: 200}}: at most so many items, "
            "and fewer where they are long, by their padded seconds in place of fold lengths"
        )
    bins = int(values.get("batch_bins", 1_000_000))
    rate = _hertz((values.get("frontend_conf") or {}).get("fs", 16000))
    padding = ", padding included" if kind == "numel" else ", without padding there"
    return (
        f"{kind} with batch_bins: {bins} is dataloader.train: {{batch_seconds: {bins / rate:g}}} "
        f"for speech of {rate} Hz{padding}; of all ranks together there, and of each one here. Of "
        f"other data: {{batch_bins: {bins}, shape_file: exp/stats/train/feats_shape}}"
    )


def with_tokens(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a complete config with the tokens of each list that its task has.

    Raises:
        ConfigError: A task with `token_list` has none.
    """
    found = {
        key: read_token_list(values, source, key)
        for key, value in values.items()
        if key.endswith(_TOKENS) and (value or key == _TOKENS)
    }
    return {**values, **found}


def read_token_list(values: Mapping[str, Any], source: str, key: str = _TOKENS) -> list[str]:
    """Return the tokens of a config: a list, or a file with one in each line.

    Raises:
        ConfigError: There are none.
    """
    tokens = values.get(key)
    if isinstance(tokens, str):
        lines = checked_path(tokens).read_text("utf-8").removesuffix("\n").split("\n")
        return [line.rstrip("\r") for line in lines]
    if isinstance(tokens, list | tuple) and tokens:
        return [str(token) for token in tokens]
    raise ConfigError(
        f"{key} of {source}",
        key=key,
        problem=" is not set, so which token an output means is not known.",
        fix="Write the file with a token in each line: "
        f"{key}: data/token_list/bpe_unigram5000/tokens.txt",
    )


def sample_rate_of(task: str, values: Mapping[str, Any]) -> int | None:
    """Return the rate of the speech that a model was made for, in Hz; None if it does not say."""
    names = task_class(task).required_data_names()
    conf = next((key for key in _RATES if key.removesuffix("_conf") in values), None)
    if conf is None or "speech" not in names:
        return None
    rate = (values.get(conf) or {}).get("fs", _RATES[conf])
    return _hertz(rate)


def _hertz(rate: Any) -> int:
    if isinstance(rate, str):  # such as 16k
        number = rate.lower().removesuffix("hz").strip()
        return round(float(number.removesuffix("k")) * (1000 if number.endswith("k") else 1))
    return int(rate)
