"""ESPnet2's preprocessors, `preprocessor(uid, data)`, for samples of ESPnet3."""

import argparse
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from espnet3.config.resolve import resolved
from espnet3.systems.espnet2.package import task_class, task_of
from espnet3.systems.espnet2.training_config import read_token_list, training_values


class ESPnet2Preprocessor:
    """Turns texts into tokens, and whatever else ESPnet2 does to a sample of a task.

    It is built on first use, in each process that reads samples.

    Args:
        task: `asr`.
        config: A training config of ESPnet2, that of the model.
        train: Augment, by `rir_scp`, `noise_scp` or `data_aug_effects` of the config. False by
            default, because `dataset.preprocessor` serves validation as well: to augment, give it
            as the `transform` of the training data with `train: true`.
        **keys: Keys of ESPnet2 above those of the file: `token_list`, `token_type`, `bpemodel`, ...

    Raises:
        ConfigError: A key is unknown, or a file is missing.
    """

    def __init__(
        self,
        task: str,
        config: str | os.PathLike[str] | None = None,
        *,
        train: bool = False,
        **keys: Any,
    ) -> None:
        task_of(task)
        self.task = task
        self.config = None if config is None else os.fspath(config)
        self.train = train
        self.keys = {key: resolved(value) for key, value in keys.items()}
        self._function: Any = None

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with what ESPnet2 made of its speech and text."""
        if self._function is None:
            self._function = self._build()
        # ESPnet2 takes texts and arrays; numbers such as the sampling rate are ours.
        given = {
            k: v for k, v in sample.items() if k != "utt_id" and isinstance(v, str | np.ndarray)
        }
        made = self._function(str(sample.get("utt_id", "")), given)
        return {**sample, **made}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_function": None}

    def _build(self) -> Any:
        values = training_values(self.task, self.config, self.keys)
        values["token_list"] = read_token_list(values, self.config or "the preprocessor")
        namespace = argparse.Namespace(**values)
        return task_class(self.task).build_preprocess_fn(namespace, self.train)
