"""Trained models of ESPnet2: their files are read here, and ESPnet2's classes built around them."""

import argparse
import inspect
import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espnet3.errors import ConfigError, suggest
from espnet3.systems.asr.trained_model import read_training_config
from espnet3.systems.espnet2.package import (
    TASKS,
    inference_class,
    installed_version,
    task_class,
)
from espnet3.systems.espnet2.packed_model import open_packed
from espnet3.systems.espnet2.training_config import (
    read_config,
    read_token_list,
    resolve_paths,
    training_values,
    warn_of_unknown,
    with_defaults,
    with_tokens,
)
from espnet3.systems.espnet2.transducer_loss import provide_loss
from espnet3.systems.espnet2.weights import network_weights, put_weights, read_weights

logger = logging.getLogger(__name__)

ESPNET2_MODEL = "espnet3.systems.espnet2.model.ESPnet2Model"
_TENSORS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class ModelFiles:
    """Files of a model and of its language model."""

    config: StrPath | None = None
    weights: StrPath | None = None
    lm_config: StrPath | None = None
    lm_weights: StrPath | None = None
    root: Path | None = None
    """The folder of a packed model: nothing outside of it is read for it."""
    keeper: Any = None
    """Removes an extracted folder when it is no longer referred to."""

    def opened(self, packed_model: StrPath | None, task: str, lm_weight: Any) -> "ModelFiles":
        """Return the files with those of a packed model, if there is one.

        Raises:
            PackedModelError: It is damaged, or leads out of its folder.
            ConfigError: It has no language model that `lm_weight` could be of.
        """
        if packed_model is None:
            return self
        packed = open_packed(packed_model, task)
        found = replace(
            self,
            config=packed.config,
            weights=packed.weights,
            root=packed.root,
            keeper=packed.keeper,
        )
        # One that is given, or switched off, wins over the one that was packed.
        if self.lm_config is not None or lm_weight == 0:
            return found
        if lm_weight is not None and packed.lm_config is None:
            raise ConfigError(
                key="lm_weight",
                value=lm_weight,
                problem=f"but {packed_model} has no language model",
                fix="Write lm_train_config and lm_file, or delete lm_weight.",
            )
        return replace(found, lm_config=packed.lm_config, lm_weights=packed.lm_weights)

    def read(self, task: str, trust: bool) -> "tuple[TrainedModel, TrainedModel | None]":
        """Read the model, and the language model if there is one."""
        assert self.config is not None
        assert self.weights is not None
        model = TrainedModel(task, self.config, self.weights, "weights", trust, self.root)
        if self.lm_config is None or self.lm_weights is None:
            return model, None
        is_inside = self.root is not None and Path(self.lm_config).is_relative_to(self.root)
        root = self.root if is_inside else None
        lm = TrainedModel("lm", self.lm_config, self.lm_weights, "lm_file", trust, root)
        return model, lm


class TrainedModel:
    """A training of ESPnet2: its config, made complete, and its weights."""

    def __init__(
        self,
        task: str,
        config: str | os.PathLike[str],
        weights: str | os.PathLike[str],
        key: str,
        trust_remote_code: bool,
        root: Path | None = None,
    ) -> None:
        path = Path(config)
        name = "config" if key == "weights" else "lm_train_config"
        values = read_config(path, name)
        # Files first: to import espnet2 takes half a minute.
        block = values.get("model")
        # ESPnet2's own has a text there, if anything. What it packed is never ours.
        if isinstance(block, Mapping) and root is None:
            values = _values_of_ours(block, path, weights)
            self.state = network_weights(weights)
        else:
            self.state = read_weights(weights, key=key, trust_remote_code=trust_remote_code)
        self.source = os.fspath(weights)
        self.config = path
        values = resolve_paths(values, path, may_lack=("spk2utt",), within=root)
        if "token_list" in values or task in ("asr", "lm"):
            read_token_list(values, str(path))
        warn_of_unknown(task, values, str(path))
        self.values = with_tokens(with_defaults(task, values), str(path))


def _values_of_ours(
    block: Mapping[str, Any], config: Path, weights: str | os.PathLike[str]
) -> dict[str, Any]:
    """Return the keys of ESPnet2 of a model that was trained by ESPnet3.

    Raises:
        ConfigError: The training was of another model.
    """
    if block.get("_target_") != ESPNET2_MODEL:
        raise ConfigError(
            key="config",
            value=str(config),
            problem=f"which is the training of a {block.get('_target_')}, no model of ESPnet2",
            fix="Write: _target_: espnet3.systems.asr.inference.Speech2Text, with these weights.",
        )
    keys = dict(read_training_config(Path(weights))["model"])
    file = keys.pop("config", None)
    task = str(keys.pop("task"))
    del keys["_target_"]
    return training_values(task, file, keys)


def build_inference(
    task: str, model: TrainedModel, lm: TrainedModel | None, arguments: dict[str, Any], device: str
) -> Any:
    """Return ESPnet2's own class for the task with the weights that we have read."""
    import yaml

    provide_loss()
    kind, entry = inference_class(task), TASKS[task]
    takes = inspect.signature(kind.__init__).parameters
    refuse_arguments(task, {*arguments, *(["lm_train_config"] if lm else [])}, takes)
    with tempfile.TemporaryDirectory(prefix="espnet2-") as folder:
        for name, one in ((entry.argument, model), ("lm_", lm)):
            if one is not None:
                text = yaml.safe_dump(_plain(one.values), allow_unicode=True)
                file = Path(folder, f"{name}train.yaml")
                file.write_text(text, encoding="utf-8")
                arguments[f"{name}train_config"] = str(file)
        logger.info("building the model of %s", model.config)
        try:
            # Without a file of weights: we have read them, and trust no other way of reading.
            built = kind(device=device, **arguments)
        except TypeError as error:
            raise _misfit(model, error) from error
    put_weights(getattr(built, entry.network), model.state, model.source)
    if lm is not None:
        _put_lm(built, lm)
    return built


def _put_lm(built: Any, lm: TrainedModel) -> None:
    # Of the search for hypotheses, or that of a transducer.
    search = getattr(built, "beam_search_transducer", None) or built.beam_search
    scorers = getattr(search, "scorers", None) or {}
    network = scorers.get("lm") or getattr(search, "lm", None)
    if network is None:
        raise ConfigError(
            "This model cannot be decoded with a language model.",
            fix="Delete lm_train_config and lm_file.",
        )
    # ESPnet2 decodes with the inner network of its language model.
    inner = {name.removeprefix("lm."): value for name, value in lm.state.items()}
    put_weights(network, inner, lm.source)


def build_language_model(model: TrainedModel) -> Any:
    """Return ESPnet2's language model, for which it has no class of this kind."""
    logger.info("building the model of %s", model.config)
    try:
        built = task_class("lm").build_model(argparse.Namespace(**model.values))
    except TypeError as error:
        raise _misfit(model, error) from error
    put_weights(built, model.state, model.source)
    return built.eval()


def refuse_arguments(task: str, given: Iterable[str], takes: Collection[str]) -> None:
    """Refuse options that the task has no use for, in place of ignoring them.

    Raises:
        ConfigError: Naming the first.
    """
    for name in sorted(given):
        if name not in takes:
            raise ConfigError(
                key=name,
                problem=f"is set, but decoding the task {task} has no such option",
                fix=f"{suggest(name, takes)} Delete it.".strip(),
            )


@contextmanager
def loading_tensors_only(trusted: bool) -> Iterator[None]:
    """Let nothing that ESPnet2 loads by itself, such as a vocoder, unpickle other than tensors."""
    before = os.environ.get(_TENSORS_ONLY)
    if not trusted:
        os.environ[_TENSORS_ONLY] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_TENSORS_ONLY, None)
        else:
            os.environ[_TENSORS_ONLY] = before


def _misfit(model: TrainedModel, error: TypeError) -> ConfigError:
    """Return the error for options that this version of ESPnet2 does not take."""
    written = model.values.get("version", "unknown")
    return ConfigError(
        f"espnet {installed_version()} cannot build the model of {model.config}, which espnet "
        f"{written} wrote: {error}.",
        fix="Delete that key in a copy of the config, correct `options`, or install the version of "
        "espnet that wrote it.",
    )


def _plain(value: Any) -> Any:
    """Return lists for tuples, as YAML has none."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
