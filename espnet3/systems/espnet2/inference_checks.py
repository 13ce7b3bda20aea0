"""Check the settings of `ESPnet2Inference`, before ESPnet2 is imported."""

import math
import os
from typing import Any

from espnet3.errors import ConfigError
from espnet3.systems.espnet2.package import task_of
from espnet3.systems.espnet2.search import Decoding

OURS, THEIRS = "espnet3", "espnet2"
DECODED = ("asr", "asr_transducer", "st", "mt", "lm", "tts", "enh", "spk", "slu")
"""Tasks whose models can be used here, beside being trained."""


def check_task(task: Any) -> None:
    """Refuse a task that there is not, or whose models are only trained here."""
    if task not in DECODED:
        task_of(task)
        raise ConfigError(
            key="task",
            value=task,
            problem="which can be trained here, but not decoded",
            fix=f"ESPnet2Inference takes {', '.join(DECODED)}.",
        )


def check_source(config: Any, weights: Any, packed: Any) -> None:
    """See to it that there are files, of one kind."""
    if packed is not None and (config is not None or weights is not None):
        raise ConfigError(
            key="packed_model",
            value=os.fspath(packed),
            problem="and config or weights as well, which are inside of it",
            fix="Delete config and weights.",
        )
    for name, value, example in (
        ("config", config, "exp/asr_train/config.yaml"),
        ("weights", weights, "exp/asr_train/valid.acc.ave.pth"),
    ):
        if packed is None and value is None:
            raise ConfigError(
                key=name,
                problem="is not set",
                fix=f"Write: {name}: {example}; for a zip of espnet_model_zoo, packed_model: PATH",
            )


def check_outputs(task: str, outputs: Any) -> None:
    """Refuse further outputs where a task has none."""
    if isinstance(outputs, str) or not all(isinstance(one, str) for one in outputs):
        raise ConfigError(
            key="extra_outputs", value=outputs, problem="but is a list of names",
            fix="Write: extra_outputs: [duration]",
        )  # fmt: skip
    if outputs and task != "tts":
        raise ConfigError(
            key="extra_outputs",
            value=list(outputs),
            problem=f"but the task {task} has none",
            fix="Delete it.",
        )


def check_decoder(decoder: Any) -> None:
    """Refuse a search that there is not."""
    if decoder not in (None, OURS, THEIRS):
        raise ConfigError(
            key="decoder",
            value=decoder,
            problem=f"but must be {OURS} or {THEIRS}",
            fix=f"Write: decoder: {OURS}",
        )


def check_decoding(decoding: Decoding) -> None:
    """Refuse settings of a search that are no numbers, or out of range."""
    for name in ("beam_size", "nbest"):
        value = getattr(decoding, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                key=name, value=value, problem="but must be 1 or more", fix=f"Write: {name}: 1"
            )
    for name in ("ctc_weight", "lm_weight", "penalty", "maxlenratio", "minlenratio"):
        value = getattr(decoding, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise ConfigError(
                key=name, value=value, problem="but must be a number", fix=f"Write: {name}: 0.0"
            )
    if not 0 <= decoding.ctc_weight <= 1:
        raise ConfigError(
            key="ctc_weight",
            value=decoding.ctc_weight,
            problem="but is a share",
            fix="Write: ctc_weight: 0.3",
        )


def check_lm(config: Any, file: Any, weight: Any, packed: Any) -> None:
    """See to it that a language model has config, weights and a use."""
    if (config is None) != (file is None):
        lacking = "lm_train_config" if config is None else "lm_file"
        example = "config.yaml" if config is None else "valid.loss.ave.pth"
        raise ConfigError(
            f"{'lm_file' if config is None else 'lm_train_config'} is set",
            key="lm_file" if config is None else "lm_train_config",
            problem=f"but {lacking} is not: a language model needs both",
            fix=f"Write: {lacking}: exp/lm_train/{example}",
        )
    if weight and config is None and packed is None:
        raise ConfigError(
            key="lm_weight",
            value=weight,
            problem="but there is no language model",
            fix="Write lm_train_config and lm_file, or delete lm_weight.",
        )
