"""Read training configs of the public ESPnet3, whose models and batches are those of ESPnet2.

Their keys become ours when a config is loaded, with a line in the log, so that no stage knows two
spellings:

- `task` with a `model` in ESPnet2's words is a model `ESPnet2Model`;
- `dataloader.train.iter_factory` with its `batches` is the size of a batch here;
- ESPnet2's `CommonCollateFn` is `PadCollate`, and `trainer.init` stands at the top.

What has no counterpart is refused, with the line to write.
"""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from espnet3.config.sources import Layer, find_source, keys_in
from espnet3.errors import ConfigError, suggest

logger = logging.getLogger(__name__)

MODEL = "espnet3.systems.espnet2.model.ESPnet2Model"
_PAD = "espnet3.components.data.collate.PadCollate"
_COLLATE = "espnet2.train.collate_fn.CommonCollateFn"
_SEQUENCE = "SequenceIterFactory"
_SPLITS = ("train", "valid")

# By the class, since recipes derive it under other modules: the module of ESPnet2 with its task.
TASKS: Mapping[str, str] = {
    "ASRTask": "asr", "ASRTransducerTask": "asr_transducer", "ASVSpoofTask": "asvspoof",
    "CLSTask": "cls", "DiarizationTask": "diar", "EnhancementTask": "enh", "EnhS2TTask": "enh_s2t",
    "TargetSpeakerExtractionTask": "enh_tse", "GANCodecTask": "gan_codec", "GANSVSTask": "gan_svs",
    "GANTTSTask": "gan_tts", "HubertTask": "hubert", "LIDTask": "lid", "LMTask": "lm",
    "MTTask": "mt", "PS2STTask": "ps2st", "S2STTask": "s2st", "S2TTask": "s2t", "SLUTask": "slu",
    "SpeakerTask": "spk", "SSLTask": "ssl", "STTask": "st", "SVSTask": "svs", "TTSTask": "tts",
    "TTS2Task": "tts2", "UASRTask": "uasr",
}  # fmt: skip
"""Tasks of ESPnet2 by the name of their class."""

# What they say has no influence here, or only on the order of samples in a batch.
_WITHOUT_EFFECT = ("sort_in_batch", "sort_batch", "padding", "utt2category_file")
_BY_COUNT = ("unsorted", "sorted")


def translated(layer: Layer) -> Layer:
    """Return a config in which keys of the public ESPnet3 are ours.

    Args:
        layer: All files and overrides, merged; interpolations are text.

    Raises:
        ConfigError: A key has no counterpart; with the line to write.
    """
    if not _may_need_it(layer.values):
        return layer
    work = _Work(layer)
    work.take_model()
    work.take_init()
    work.take_collate()
    for split in _SPLITS:
        work.take_batches(split)
    # What is gone was set nowhere: an override of it is known as one of what it became.
    there = set(keys_in(work.values))
    return Layer(work.values, {key: place for key, place in work.sources.items() if key in there})


def _may_need_it(values: Mapping[str, Any]) -> bool:
    loaders, trainer = values.get("dataloader"), values.get("trainer")
    loaders = loaders if isinstance(loaders, Mapping) else {}
    keys = ("iter_factory", "multiple_iterator", "num_shards", "batch_distribution")
    splits = [loaders.get(split) for split in _SPLITS]
    return (
        _has_task(values)
        or any(isinstance(split, Mapping) and any(key in split for key in keys) for split in splits)
        or _target(loaders.get("collate_fn")) == _COLLATE
        or (isinstance(trainer, Mapping) and isinstance(trainer.get("init"), str))
    )


def _has_task(values: Mapping[str, Any]) -> bool:
    """Tell whether a task is named, and not a model of ours, which says itself what it is."""
    model = values.get("model")
    in_words = isinstance(model, Mapping) and "_target_" not in model
    return isinstance(values.get("task"), str) and in_words


def _target(node: Any) -> Any:
    return node.get("_target_") if isinstance(node, Mapping) else None


class _Work:
    """A config that is being changed, with the places of its keys."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.values: dict[Any, Any] = dict(layer.values)
        self.sources = dict(layer.sources)

    def set_in(self, key: str) -> str:
        """Return where a key was set, for `locate`."""
        source = find_source(key, self.layer.sources)
        return f" (set in {source})" if source else ""

    def refuse(self, key: str, value: Any, problem: str, fix: str) -> ConfigError:
        """Return the error about a key, with its place."""
        error = ConfigError(key=key, value=value, problem=problem, fix=fix)
        error.locate(self)
        return error

    def take_model(self) -> None:
        """Make a model of ESPnet2 of `task` and of a `model` without `_target_`."""
        if not _has_task(self.values):
            return
        task, model = self.values.pop("task"), dict(self.values["model"])
        name = _task_name(self.read("task") or task)
        if name is None:
            raise self.refuse(
                "task", task, "which is no task of ESPnet2",
                f"{suggest(str(task).rpartition('.')[2], [*TASKS, *TASKS.values()])} Write one by "
                "its name, task: asr, or the class of your own model: model: {_target_: "
                "src.model.MyModel}".strip(),
            )  # fmt: skip
        if "vocab_size" in model:
            # Not a key of ESPnet2's configs, which go by the number of tokens.
            del model["vocab_size"]
            _say(f"model.vocab_size{self.set_in('model.vocab_size')} is left out: the tokens of "
                 "token_list say it")  # fmt: skip
        self.values["model"] = {"_target_": MODEL, "task": name, **model}
        self._moved("task", "model._target_", "model.task")
        _say(f"task{self.set_in('task')} is {task}, so that model is read as {{_target_: {MODEL}, "
             f"task: {name}, ...}}")  # fmt: skip

    def take_init(self) -> None:
        """Take `trainer.init` to the top, where it stands here."""
        trainer = self.values.get("trainer")
        if not isinstance(trainer, Mapping) or not isinstance(trainer.get("init"), str):
            return
        if self.values.get("init") is not None:
            return  # as a key of the trainer without a reader, it is refused there
        self.values["init"] = trainer["init"]
        self.values["trainer"] = {key: value for key, value in trainer.items() if key != "init"}
        self._moved("trainer.init", "init")
        _say(f"trainer.init{self.set_in('trainer.init')} is read as init, at the top")

    def take_collate(self) -> None:
        """Make our function of the one of ESPnet2 that pads."""
        node = (self.values.get("dataloader") or {}).get("collate_fn")
        if not isinstance(node, Mapping) or _target(node) != _COLLATE:
            return
        # Theirs by default; both sides have 0 for real numbers.
        ours: dict[str, Any] = {"_target_": _PAD, "int_pad": -32768}
        names = {"int_pad_value": "int_pad", "float_pad_value": "float_pad"}
        for key, value in node.items():
            if key in names:
                ours[names[key]] = value
            elif key != "_target_" and value:
                raise self.refuse(
                    f"dataloader.collate_fn.{key}", value, f"which {_PAD} does not have",
                    f"Delete it, or write a function of your own: collate_fn: {{_target_: {_PAD}, "
                    "lengths: [speech, text]}",
                )  # fmt: skip
        self.values["dataloader"] = {**self.values["dataloader"], "collate_fn": ours}
        self._moved("dataloader.collate_fn", *(f"dataloader.collate_fn.{key}" for key in ours))

    def take_batches(self, split: str) -> None:
        """Make our sizes of the block `iter_factory` of a split."""
        loaders = self.values.get("dataloader")
        block = loaders.get(split) if isinstance(loaders, Mapping) else None
        if not isinstance(loaders, Mapping) or not isinstance(block, Mapping):
            return
        loader, key = _Loader(self, f"dataloader.{split}", dict(block)), f"dataloader.{split}"
        loader.take()
        self.values["dataloader"] = {**loaders, split: loader.ours}
        for name, origin in loader.origins.items():
            self._moved(origin, f"{key}.{name}")

    def read(self, key: str) -> Any:
        """Return a value with its interpolations; as text where they cannot be resolved yet."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            return OmegaConf.select(OmegaConf.create(self.layer.values), key)
        except OmegaConfBaseException:
            return None

    def _moved(self, origin: str, *keys: str) -> None:
        """Let keys be known as set where another one was."""
        source = find_source(origin, self.layer.sources)
        if source is not None:
            self.sources.update(dict.fromkeys(keys, source))


class _Loader:
    """The block of a split: what becomes of the keys of the public ESPnet3 in it."""

    def __init__(self, work: _Work, key: str, block: dict[str, Any]) -> None:
        self.work = work
        self.key = key
        self.ours = block
        self.origins: dict[str, str] = {}
        """The key that each of ours comes from."""

    def take(self) -> None:
        """Change the block."""
        factory = self.ours.pop("iter_factory", None)
        self._take_shards()
        self._take_distribution(has_factory=factory is not None)
        if factory is None:
            return
        if not isinstance(factory, Mapping) or not str(_target(factory)).endswith(_SEQUENCE):
            raise self._refuse(
                "iter_factory", _target(factory) or factory, f"but only {_SEQUENCE} is known here",
                f"Write in its place: {self._line('batch_seconds: 120')}",
            )  # fmt: skip
        for name, value in factory.items():
            self._take_argument(str(name), value)
        self._take_sizes(factory.get("batches"))
        shown = ", ".join(f"{name}: {self.ours[name]}" for name in self.origins)
        _say(f"{self.key}.iter_factory{self.work.set_in(f'{self.key}.iter_factory')} is read as "
             f"{shown}. Batches are those of all processes together; of each: batch_is_global: "
             "false")  # fmt: skip

    def _take_shards(self) -> None:
        for name, nothing in (("multiple_iterator", False), ("num_shards", 1)):
            if name in self.ours and self._read(name) not in (nothing, None):
                raise self._refuse(
                    name, self.ours[name], "but shards are a matter of the data here",
                    "Delete it; a corpus in shards is a data_src: tar, and "
                    f"{self._line('buffer_shards: 16')} says how many are read at a time",
                )  # fmt: skip
            self.ours.pop(name, None)

    def _take_distribution(self, *, has_factory: bool) -> None:
        word = self._read("batch_distribution")
        if word not in (None, "global", "per_gpu"):
            raise self._refuse(
                "batch_distribution", word, "but must be global or per_gpu",
                f"Write: {self._line('batch_is_global: true')}",
            )  # fmt: skip
        given = self.ours.pop("batch_distribution", None)
        if "batch_is_global" not in self.ours and (has_factory or given is not None):
            origin = "iter_factory" if given is None else "batch_distribution"
            self._set("batch_is_global", word != "per_gpu", origin)

    def _take_argument(self, name: str, value: Any) -> None:
        if name in ("_target_", "batches"):
            return
        full = f"iter_factory.{name}"
        if name == "collate_fn":
            # The one of both splits; another one for a split has no place here.
            if value is not None and "dataloader.collate_fn" not in str(value):
                raise self._refuse(
                    full, value, "but both splits have one function",
                    "Write: dataloader: {collate_fn: {_target_: ...}}",
                )  # fmt: skip
        elif name in ("shuffle", "num_workers", "pin_memory"):
            if name not in self.ours:
                self._set(name, value, full)
        elif name == "num_iters_per_epoch":
            if value is not None:
                limit = "limit_train_batches" if self.key.endswith("train") else "limit_val_batches"
                raise self._refuse(
                    full, value, "which is set for the trainer here",
                    f"Write: trainer: {{{limit}: {value}}}",
                )  # fmt: skip
        elif name == "seed":
            if self._read(full) not in (0, None, self.work.read("seed")):
                raise self._refuse(full, value, "but batches follow the seed of the experiment",
                                   f"Write at the top: seed: {value}")  # fmt: skip
        elif name == "shuffle_within_batch":
            return  # the order of samples in a batch
        elif value is not None:
            raise self._refuse(full, value, f"which has no counterpart of {_SEQUENCE} here",
                               "Delete it.")  # fmt: skip

    def _take_sizes(self, batches: Any) -> None:
        if not isinstance(batches, Mapping):
            raise self._refuse("iter_factory.batches", batches, "but says how large a batch is",
                               f"Write: {self._line('batch_size: 16')}")  # fmt: skip
        kind = self._read("iter_factory.batches.type")
        known: dict[str, Callable[[], None]] = {
            "numel": self._by_bins,
            **dict.fromkeys(_BY_COUNT, self._by_count),
        }
        if kind not in known:
            raise self._refuse(
                "iter_factory.batches.type", kind, _problem_of(kind),
                f"Write in place of iter_factory: {self._line('batch_seconds: 120')}",
            )  # fmt: skip
        known[kind]()
        if kind == "sorted" and "max_padding" not in self.ours:
            self._set("max_padding", 0.08, "iter_factory.batches.type")
        used = {"type", "batch_size", "batch_bins", "shape_files", *_WITHOUT_EFFECT}
        for name, value in batches.items():
            full = f"iter_factory.batches.{name}"
            if name == "drop_last":
                self._set("drop_last", value, full)
            elif name == "min_batch_size":
                if self._read(full) not in (None, 1):
                    raise self._refuse(full, value, "which batches do not have here", "Delete it.")
            elif name not in used and value:
                raise self._refuse(full, value, "which has no counterpart here", "Delete it.")

    def _by_bins(self) -> None:
        bins, files = self._read(f"{_BATCHES}.batch_bins"), self._raw("shape_files")
        if bins is None or not files:
            lacking = "batch_bins" if bins is None else "shape_files"
            raise self._refuse(
                "iter_factory.batches", self._raw(None), f"but type: numel needs {lacking}",
                f"Write: {self._line('batch_bins: 4000000, shape_file: ${stats_dir}/train/...')}",
            )  # fmt: skip
        self._set("batch_bins", bins, f"{_BATCHES}.batch_bins")
        one = files[0] if isinstance(files, list | tuple) and len(files) == 1 else files
        self._set("shape_file", one, f"{_BATCHES}.shape_files")

    def _by_count(self) -> None:
        size = self._read(f"{_BATCHES}.batch_size")
        bins = self._read(f"{_BATCHES}.batch_bins")
        if size is None and bins is not None:
            raise self._refuse(
                "iter_factory.batches.batch_bins", bins,
                "which batches of type unsorted and sorted do not go by",
                "Write: type: numel, or a batch_size",
            )  # fmt: skip
        if size is None:
            raise self._refuse("iter_factory.batches", self._raw(None), "but has no batch_size",
                               f"Write: {self._line('batch_size: 16')}")  # fmt: skip
        self._set("batch_size", size, f"{_BATCHES}.batch_size")

    def _raw(self, name: str | None) -> Any:
        factory = self.work.layer.values["dataloader"][self.key.rpartition(".")[2]]["iter_factory"]
        batches = factory["batches"]
        return batches if name is None else batches.get(name)

    def _read(self, name: str) -> Any:
        return self.work.read(f"{self.key}.{name}")

    def _set(self, name: str, value: Any, origin: str) -> None:
        self.ours[name] = value
        self.origins[name] = f"{self.key}.{origin}"

    def _line(self, inner: str) -> str:
        return f"dataloader: {{{self.key.rpartition('.')[2]}: {{{inner}}}}}"

    def _refuse(self, name: str, value: Any, problem: str, fix: str) -> ConfigError:
        return self.work.refuse(f"{self.key}.{name}", value, problem, fix)


_BATCHES = "iter_factory.batches"


def _problem_of(kind: Any) -> str:
    if kind == "folded":
        return "whose batches get smaller with the length: here that is a limit of seconds"
    if kind == "length":
        return "which counts frames: here that is a limit of seconds, or batch_bins of numbers"
    return "but must be numel, sorted or unsorted"


def _task_name(task: Any) -> str | None:
    word = str(task)
    if word in TASKS.values():
        return word
    module, _, name = word.rpartition(".")
    # Two tasks of ESPnet2 have a class of one name.
    return "s2t_ctc" if module.endswith("s2t_ctc") else TASKS.get(name)


@cache
def _say(message: str) -> None:
    """Log it once: a config is loaded several times in a run."""
    logger.info("%s", message)
