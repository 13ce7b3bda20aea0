"""ESPnet2's preprocessors, `preprocessor(uid, data)`, and its batches, for samples of ESPnet3."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from espnet3.config.resolve import resolved
from espnet3.systems.espnet2.package import task_class, task_of
from espnet3.systems.espnet2.training_config import training_values


class _TaskFunction:
    """Function of a task of ESPnet2 by its config, built on first use in each process."""

    def __init__(
        self,
        task: str,
        config: str | os.PathLike[str] | None,
        train: bool,
        keys: Mapping[str, Any],
    ) -> None:
        task_of(task)
        self.task = task
        self.config = None if config is None else os.fspath(config)
        self.train = train
        self.keys = {key: resolved(value) for key, value in keys.items()}
        self._function: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_function": None}

    def _build(self, name: str) -> Any:
        """Return what this method of the task's class makes for the config."""
        values = training_values(self.task, self.config, self.keys, may_lack=("stats_file",))
        return getattr(task_class(self.task), name)(argparse.Namespace(**values), self.train)


class ESPnet2Preprocessor(_TaskFunction):
    """Turns texts into tokens, and whatever else ESPnet2 does to a sample of a task.

    Args:
        task: Of ESPnet2: `asr`, `tts`, ...
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
        super().__init__(task, config, train, keys)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with what ESPnet2 made of its speech and text."""
        if self._function is None:
            self._function = self._build("build_preprocess_fn") or False
        given = _data_of(sample)
        # Tasks such as enh have none.
        made = self._function(str(sample.get("utt_id", "")), given) if self._function else given
        return {**sample, **made}


class ESPnet2Collate(_TaskFunction):
    """Makes batches by ESPnet2's own function, as `dataloader.collate_fn`.

    Only tasks that do more than padding need it, such as `hubert`, which cuts speech: how integers
    are padded, `ESPnet2Model` corrects by itself.

    Args:
        task: Of ESPnet2.
        config: A training config of ESPnet2, that of the model.
        train: For training; some cut or augment then.
        **keys: Keys of ESPnet2 above those of the file.

    Raises:
        ConfigError: A key is unknown, or a file is missing.
    """

    def __init__(
        self,
        task: str,
        config: str | os.PathLike[str] | None = None,
        *,
        train: bool = True,
        **keys: Any,
    ) -> None:
        super().__init__(task, config, train, keys)

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, Any]]:
        """Return the ids, and the fields of the batch with their lengths."""
        if self._function is None:
            self._function = self._build("build_collate_fn")
        arrays = [
            {k: v for k, v in _data_of(one).items() if isinstance(v, np.ndarray)} for one in samples
        ]
        ids = [str(one.get("utt_id", i)) for i, one in enumerate(samples)]
        _, batch = self._function(list(zip(ids, arrays, strict=True)))
        return ids, batch


def _data_of(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ESPnet2 takes of a sample: texts and arrays; numbers such as rates are ours."""
    return {k: v for k, v in sample.items() if k != "utt_id" and isinstance(v, str | np.ndarray)}
