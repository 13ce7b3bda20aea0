"""Translate the keys of an ESPnet2 training config that are not about the model.

Batches, optimizer, schedule, epochs, checkpoints: these are the same whichever model is trained.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from espnet3.migration.journal import Journal, Origin
from espnet3.migration.source_recipe import ConfigFile, SourceRecipe
from espnet3.trainer.config import METHODS

_OPTIMIZERS = {
    "adadelta": "Adadelta", "adagrad": "Adagrad", "adam": "Adam", "adamax": "Adamax",
    "adamw": "AdamW", "asgd": "ASGD", "radam": "RAdam", "rmsprop": "RMSprop", "rprop": "Rprop",
    "sgd": "SGD",
}  # fmt: skip
_RATES = {
    "adadelta": 1.0, "adagrad": 0.01, "adamax": 0.002, "asgd": 0.01, "rmsprop": 0.01, "rprop": 0.01,
    "sgd": 0.1,
}  # fmt: skip
"""Learning rates that ESPnet2 takes where a config has none, other than 0.001."""
_BY_STEP = {
    "onecyclelr": "OneCycleLR", "cycliclr": "CyclicLR",
    "cosineannealingwarmrestarts": "CosineAnnealingWarmRestarts",
}  # fmt: skip
_BY_EPOCH = {
    "steplr": "StepLR", "multisteplr": "MultiStepLR", "exponentiallr": "ExponentialLR",
    "cosineannealinglr": "CosineAnnealingLR", "reducelronplateau": "ReduceLROnPlateau",
}  # fmt: skip
_CRITERIA = [["valid", "loss", "min"], ["valid", "acc", "max"]]
"""Those that ESPnet2 keeps checkpoints by where a config has none, of the validation set."""


def _because(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


UNNEEDED = {
    **_because(
        "batches hold utterances of similar length",
        "sort_in_batch sort_batch shuffle_within_batch drop_last_iter",
    ),
    **_because(
        "curves and TensorBoard are always written; others: trainer.logger",
        "num_att_plot use_matplotlib use_tensorboard create_graph_in_tensorboard use_wandb "
        "wandb_project wandb_id wandb_entity wandb_name wandb_model_log_interval",
    ),
    **_because(
        "processes and nodes are those of the trainer block",
        "ngpu num_nodes dist_backend dist_init_method dist_world_size dist_rank local_rank "
        "dist_master_addr dist_master_port dist_launcher multiprocessing_distributed sharded_ddp",
    ),
    **_because(
        "the stages see to it",
        "log_level config print_config dry_run output_dir resume collect_stats "
        "write_collected_feats no_forward_run version required distributed "
        "cudnn_enabled cudnn_benchmark cudnn_deterministic detect_anomaly max_cache_size "
        "max_cache_fd valid_max_cache_size allow_variable_data_keys train_shape_file "
        "valid_shape_file train_data_path_and_name_and_type valid_data_path_and_name_and_type",
    ),
    "fold_length": "batches are limited by their padded seconds",
    "valid_batch_type": "as that of training",
}
"""Keys that need no counterpart, and why."""
_ONLY_VALUE: Mapping[str, tuple[Any, str]] = {
    "iterator_type": ("sequence", "only whole utterances make batches here"),
    "valid_iterator_type": ("sequence", "only whole utterances make batches here"),
    "train_dtype": ("float32", "set trainer.precision"),
    "use_preprocessor": (True, "texts are always made into tokens"),
    "use_deepspeed": (False, "DeepSpeed is not here"),
    "use_adapter": (False, "adapters are not here"),
    "multiple_iterator": (False, "all data is one list here"),
    "multi_task_dataset": (False, "all data is one list here"),
    "use_tf32": (False, "set torch.set_float32_matmul_precision in run.py"),
    "min_batch_size": (1, "a batch has at least one utterance"),
    "ddp_comm_hook": (None, "set trainer.strategy"),
    "use_lang_prompt": (False, "prompts are not here"),
    "use_nlp_prompt": (False, "prompts are not here"),
    "nbest_averaging_interval": (0, "averages are made after training"),
}
"""Keys that change nothing at one value; at any other they have no counterpart, and why."""
_READ_ONLY_WITH = {
    "val_scheduler_criterion": "read only with scheduler: reducelronplateau",
    "early_stopping_criterion": "read only with patience",
}
_WITHOUT_ADAPTER = ("adapter", "adapter_conf", "save_strategy", "deepspeed_config")
_OF_CHUNKS = ("chunk_", "num_cache_chunks", "category_", "upsampling_factor", "dataset_")
_BATCH_TYPES = ("numel", "length", "folded", "sorted", "unsorted")


@dataclass
class LoopKeys:
    """Translates what a training loop reads; each key that is read is noted.

    Args:
        config: Of the training.
        recipe: For GPUs, sampling rate and fold lengths.
        metrics: Names that the model reports, for the choice of checkpoints; None for any.
        has_audio: False for a model of texts, whose batches have no seconds.
    """

    config: ConfigFile
    recipe: SourceRecipe
    metrics: Collection[str] | None = None
    read: set[str] = field(default_factory=set)
    has_audio: bool = True

    @property
    def journal(self) -> Journal:
        """Gets a line for each key."""
        return self.recipe.journal

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value, and remember that it was read."""
        self.read.add(key)
        found = self.config.values.get(key)
        return default if found is None else found

    def block(self, key: str) -> dict[str, Any]:
        """Return a mapping; empty if there is none."""
        found = self.value(key)
        return dict(found) if isinstance(found, Mapping) else {}

    def note(self, key: str, became: str, note: str = "") -> None:
        """Note a key that has a counterpart, if the config has it."""
        if key in self.config.values:
            self.journal.taken(self.config.origin(key), key, self.config.values[key], became, note)

    def lose(self, key: str, note: str, became: str = "") -> None:
        """Note a key whose meaning is not, or not wholly, kept."""
        value = self.config.values.get(key, "")
        self.journal.changes(self.config.origin(key), key, value, note, became)

    def number(self, key: str, default: Any) -> Any:
        """Return a number; one that is none is noted, and the default taken."""
        found = self.value(key, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            self.lose(key, f"it is not a number; {default} taken")
            return default
        return found

    # --- Parts of the training config ----------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return all blocks of the training config but data and model."""
        blocks = {
            "seed": int(self.number("seed", 0)),
            "dataloader": self._dataloader() if self.has_audio else self._text_batches(),
            **self._optimizer(),
            "best_model_criterion": self._criteria(),
            "trainer": self._trainer(),
            **self._weights(),
        }
        self.note("seed", "seed")
        return {name: block for name, block in blocks.items() if block is not None}

    def _world(self) -> int:
        devices = max(1, int(self.recipe.number("ngpu")))
        return devices * max(1, int(self.recipe.number("num_nodes")))

    def _dataloader(self) -> dict[str, Any]:
        recipe = self.recipe
        train = self._batches("batch_size", "batch_bins")
        longest, shortest = recipe.number("max_wav_duration"), recipe.number("min_wav_duration")
        train |= {"min_seconds": shortest, "max_seconds": longest}
        if train.get("batch_seconds", longest) < longest:
            key = "batch_bins" if "batch_size" not in train else "batch_size"
            self.lose(key, f"a batch of {train['batch_seconds']:g} s cannot hold an utterance of "
                      f"{longest:g} s (--max_wav_duration), so it has {longest:g} s",
                      "dataloader.train.batch_seconds")  # fmt: skip
            train["batch_seconds"] = longest
        for name, key in (("min_wav_duration", "min"), ("max_wav_duration", "max")):
            became = f"dataloader.train.{key}_seconds"
            recipe.journal.taken(
                recipe.origin(name),
                f"--{name}",
                recipe.get(name),
                became,
                "; ".join(filter(None, [_default(recipe, name), "of dataset.valid all is used"])),
            )
        workers = int(self.number("num_workers", 1))
        self.note("num_workers", "dataloader.train.num_workers", "in each training process")
        valid = self._batches("valid_batch_size", "valid_batch_bins", train)
        if valid.get("batch_seconds", longest) < longest:
            valid["batch_seconds"] = longest
        return {
            "train": {**train, "num_workers": workers},
            "valid": {**valid, "num_workers": workers},
        }

    def _text_batches(self) -> dict[str, Any]:
        """Return batches of a number of texts."""
        kind, world = str(self.value("batch_type", "folded")), self._world()
        self.read |= {"batch_bins", "valid_batch_bins", "valid_batch_size"}
        if kind in ("numel", "length"):
            self.lose("batch_bins", "of tokens; batches of 64 texts taken", "dataloader.train")
            self._unread("batch_size", kind)
            size = 64
        else:
            size = int(self.number("batch_size", 20))
            self.note("batch_size", "dataloader.train.batch_size", "of one process")
            self._unread("batch_bins", kind)
            if kind not in _BATCH_TYPES:
                self.lose("batch_type", "is not here; batches of a number of texts taken")
        workers = int(self.number("num_workers", 1))
        self.note("num_workers", "dataloader.train.num_workers", "in each training process")
        block = {"batch_size": max(1, size // world), "num_workers": workers}
        return {"train": block, "valid": dict(block)}

    def _batches(
        self, size_key: str, bins_key: str, train: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the size of a batch of one process."""
        if train is not None and self.value(size_key) is None and self.value(bins_key) is None:
            return {name: value for name, value in train.items() if name.startswith("batch_")}
        kind = str(self.value("batch_type", "folded"))
        if kind not in _BATCH_TYPES and train is None:
            self.lose("batch_type", "is not here; batches of a number of utterances taken")
        world = self._world()
        shared = f"; ESPnet2's {world} processes share it" if world > 1 else ""
        if kind in ("numel", "length"):
            bins = self.number(bins_key, 1_000_000)
            seconds = max(1, round(bins / self.recipe.sample_rate / world, 1))
            key = "dataloader.train.batch_seconds"
            note = f"samples of audio at {self.recipe.sample_rate} Hz, of one process{shared}"
            self.note(bins_key, key, note + "; ESPnet2 also counts tokens x vocabulary, so its "
                      "batches are smaller the larger the vocabulary is")  # fmt: skip
            self._note_kind(train, key)
            self._unread(size_key, kind)
            return {"batch_seconds": seconds}
        self._unread(bins_key, kind)
        size = max(1, int(self.number(size_key, 20)) // world)
        self.note(size_key, "dataloader.train.batch_size", f"of one process{shared}")
        self._note_kind(train, "dataloader.train")
        if kind == "folded":
            fold = self.recipe.number("asr_speech_fold_length") * 100 / self.recipe.sample_rate
            return {"batch_size": size, "batch_seconds": max(1, round(size * fold, 1))}
        return {"batch_size": size} | ({"max_padding": 0.08} if kind == "sorted" else {})

    def _unread(self, key: str, kind: str) -> None:
        """Note a size that ESPnet2 does not read either."""
        value = self.value(key)
        if value is not None:
            note = f"not read with batch_type: {kind}"
            self.journal.unneeded(self.config.origin(key), key, value, note)

    def _note_kind(self, train: object, key: str) -> None:
        if train is None and self.value("batch_type", "folded") in _BATCH_TYPES:
            words = "batches are limited by seconds of padded audio, and shuffled"
            self.note("batch_type", key, words)

    def _optimizer(self) -> dict[str, Any]:
        name = str(self.value("optim", "adadelta")).lower()
        arguments = self.block("optim_conf")
        for key in ("optim2", "optim2_conf", "scheduler2", "scheduler2_conf"):
            if self.value(key) is not None:
                self.lose(key, "a second optimizer: write it under optimizers, schedulers")
        if name not in _OPTIMIZERS:
            self.lose("optim", f"is no optimizer of torch; Adam taken ({sorted(_OPTIMIZERS)})")
            name, arguments = "adam", {k: v for k, v in arguments.items() if k == "lr"}
        target = f"torch.optim.{_OPTIMIZERS[name]}"
        arguments.setdefault("lr", _RATES.get(name, 0.001))
        self.note("optim", f"optimizer: {target}")
        self.note("optim_conf", "optimizer", "the same arguments")
        scheduler = self._scheduler(arguments)
        for key in ("exclude_weight_decay", "exclude_weight_decay_conf"):
            if self.value(key):
                self.lose(key, "weights without decay: write them under optimizers, by name")
        return {"optimizer": {"_target_": target, **arguments}, **scheduler}

    def _scheduler(self, optimizer: dict[str, Any]) -> dict[str, Any]:
        name = self.value("scheduler")
        arguments = self.block("scheduler_conf")
        criterion = self.value("val_scheduler_criterion", ["valid", "loss"])
        if name is None or str(name).lower() == "none":
            return {}
        name = str(name).lower()
        ours = "espnet3.components.schedulers.WarmupLR"
        if name == "warmuplr":
            self.note("scheduler", f"scheduler: {ours}", "the same formula")
            self.note("scheduler_conf", "scheduler")
            return {"scheduler": {"_target_": ours, **arguments}}
        if name == "noamlr":
            warmup = arguments.get("warmup_steps", 25000)
            size = arguments.get("model_size", 320)
            optimizer["lr"] = optimizer["lr"] * size**-0.5 * warmup**-0.5
            self.note("scheduler", f"scheduler: {ours}", "the same curve, with its highest rate "
                      "as optimizer.lr: lr x model_size^-0.5 x warmup_steps^-0.5")  # fmt: skip
            self.note("scheduler_conf", "scheduler, optimizer.lr")
            return {"scheduler": {"_target_": ours, "warmup_steps": warmup}}
        kinds = {**_BY_STEP, **_BY_EPOCH}
        if name not in kinds:
            self.lose("scheduler", "is not here, so the rate is constant")
            self.value("scheduler_conf")
            return {}
        target = f"torch.optim.lr_scheduler.{kinds[name]}"
        self.note("scheduler", f"scheduler: {target}")
        self.note("scheduler_conf", "scheduler", "the same arguments")
        found = {
            "scheduler": {"_target_": target, **arguments},
            "scheduler_interval": "step" if name in _BY_STEP else "epoch",
        }
        if name == "reducelronplateau":
            self.note("val_scheduler_criterion", "scheduler_monitor")
            found["scheduler_monitor"] = self._metric(criterion, "val_scheduler_criterion")
        return found

    def _metric(self, criterion: Any, key: str) -> str:
        """Return `valid/acc` for `[valid, acc, max]`, or the loss where there is no such metric."""
        words = [str(word) for word in criterion] if isinstance(criterion, list) else []
        if len(words) < 2 or (self.metrics is not None and words[1] not in self.metrics):
            if key in self.config.values:
                self.lose(key, "this model does not report it; valid/loss taken", "valid/loss")
            return "valid/loss"
        return f"{words[0]}/{words[1]}"

    def _criteria(self) -> list[list[Any]]:
        kept = self.value("keep_nbest_models", 10)
        numbers = [n for n in (kept if isinstance(kept, list) else [kept]) if isinstance(n, int)]
        most = max(numbers, default=10)
        listed = self.value("best_model_criterion", _CRITERIA)
        listed = listed if isinstance(listed, list) else []
        valid = [one for one in listed if isinstance(one, list) and one[:1] == ["valid"]]
        if len(valid) < len(listed):
            self.journal.unneeded(
                self.config.origin("best_model_criterion"), "best_model_criterion",
                [one for one in listed if one not in valid],
                "checkpoints are chosen by the validation set only",
            )  # fmt: skip
        criteria: list[list[Any]] = []
        for one in valid or [["valid", "loss", "min"]]:
            metric = self._metric(one, "best_model_criterion")
            mode = str(one[2]) if len(one) > 2 and metric == f"valid/{one[1]}" else "min"
            if metric not in [criterion[0] for criterion in criteria]:
                criteria.append([metric, most, mode])
        self.note("best_model_criterion", "best_model_criterion")
        self.note("keep_nbest_models", "best_model_criterion", "the second entry of each")
        return criteria

    def _trainer(self) -> dict[str, Any]:
        recipe = self.recipe
        gpus = int(recipe.number("ngpu"))
        trainer: dict[str, Any] = {
            "accelerator": "auto" if gpus else "cpu",
            "devices": max(1, gpus),
            "max_epochs": int(self.number("max_epoch", 40)),
            "gradient_clip_val": self._clip(),
        }
        recipe.journal.taken(recipe.origin("ngpu"), "--ngpu", recipe.get("ngpu"),
                             "trainer.devices", _default(recipe, "ngpu"))  # fmt: skip
        self.note("max_epoch", "trainer.max_epochs")
        if int(recipe.number("num_nodes")) > 1:
            trainer["num_nodes"] = int(recipe.number("num_nodes"))
        for key, ours in (
            ("accum_grad", "accumulate_grad_batches"),
            ("log_interval", "log_every_n_steps"),
            ("num_iters_per_epoch", "limit_train_batches"),
        ):
            if self.value(key) is not None:
                trainer[ours] = int(self.number(key, 1))
                note = "drawn from all data in each epoch" if key.startswith("num_iters") else ""
                self.note(key, f"trainer.{ours}", note)
        return trainer | self._switches(trainer) | self._patience()

    def _clip(self) -> float:
        norm = float(self.number("grad_clip", 5.0))
        if norm >= 0:
            self.note("grad_clip", "trainer.gradient_clip_val")
            return norm
        self.lose("grad_clip", "is negative; gradients are not clipped")
        return 0.0

    def _switches(self, trainer: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.value("use_amp"):
            # Without a GPU, half precision is refused: conf/training_amp.yaml sets it.
            self.note("use_amp", "conf/training_amp.yaml", "trainer.precision: 16-mixed, on GPUs")
        else:
            self.note("use_amp", "", "single precision is the default")
        many = trainer["devices"] > 1 or "num_nodes" in trainer
        if self.value("unused_parameters"):
            note = "" if many else "only for several processes"
            self.note("unused_parameters", "trainer.strategy", note)
            if many:
                found["strategy"] = "ddp_find_unused_parameters_true"
        if self.value("grad_noise"):
            self.lose("grad_noise", "noise on gradients is not here")
        elif "grad_noise" in self.config.values:
            self.note("grad_noise", "", "off, as here")
        if self.value("grad_clip_type", 2.0) != 2.0:
            self.lose("grad_clip_type", "gradients are clipped by their 2-norm here")
        return found

    def _patience(self) -> dict[str, Any]:
        patience = self.value("patience")
        criterion = self.value("early_stopping_criterion", ["valid", "loss", "min"])
        if not isinstance(patience, int):
            return {}
        self.note("patience", "trainer.callbacks: EarlyStopping")
        metric = self._metric(criterion, "early_stopping_criterion")
        mode = str(criterion[2]) if metric != "valid/loss" and len(criterion) > 2 else "min"
        stopping = {
            "_target_": "lightning.pytorch.callbacks.EarlyStopping",
            "monitor": metric, "mode": mode, "patience": patience,
        }  # fmt: skip
        return {"callbacks": [stopping]}

    def _weights(self) -> dict[str, Any]:
        """Return how weights begin: drawn, read from files, or kept fixed."""
        entries: list[Any] = []
        method = self.value("init")
        if method in METHODS:
            entries.append(method)
            self.note("init", "init")
        elif method is not None and str(method) != "none":
            self.lose("init", f"is not here; known: {', '.join(METHODS)}")
        listed = self.value("init_param", [])
        for text in listed if isinstance(listed, list) else [listed]:
            if str(text).startswith("dump/") or "://" in str(text) or not str(text):
                self.lose("init_param", f"{text} is no file of weights that can be read here")
                continue
            path, source, target, exclude = [*str(text).split(":"), "", "", ""][:4]
            entry: dict[str, Any] = {"path": str(self.recipe.folder / path)}
            if source:
                entry["from"] = source
            if target:
                entry["to"] = target
            if exclude:
                entry["exclude"] = exclude.split(",")
            entries.append(entry)
            self.note("init_param", "init")
        frozen = self.value("freeze_param", [])
        frozen = frozen if isinstance(frozen, list) else [frozen]
        patterns = [f"{name}.*" for name in frozen]
        if patterns:
            self.note("freeze_param", "freeze")
        found = {"init": entries} if entries else {}
        return found | ({"freeze": patterns} if patterns else {})

    def finish(self, also_known: Mapping[str, str]) -> None:
        """Note each key that nothing has read.

        Args:
            also_known: Further keys without a counterpart that change nothing, and why.
        """
        known = {**UNNEEDED, **also_known}
        noted = {(entry.origin, entry.name) for entry in self.journal.entries}
        for key, value in self.config.values.items():
            origin = self.config.origin(key)
            if key.endswith("_conf") and not isinstance(value, Mapping | None):
                self.lose(key, "holds no keys and values, so nothing of it was taken")
            elif key in self.read:
                if (origin, key) not in noted:
                    self.journal.unneeded(origin, key, value, _READ_ONLY_WITH.get(key, "as here"))
            elif key in _ONLY_VALUE:
                self._only_value(key, value)
            elif key in known:
                self.journal.unneeded(origin, key, value, known[key])
            elif key in _WITHOUT_ADAPTER or key.startswith(_OF_CHUNKS):
                note = "read only with use_adapter, use_deepspeed or another iterator_type"
                self.journal.unneeded(origin, key, value, note)
            else:
                note = "is not known here: of another version of ESPnet2, or without a counterpart"
                self.journal.changes(origin, key, value, note)

    def _only_value(self, key: str, value: Any) -> None:
        expected, note = _ONLY_VALUE[key]
        if value in (None, expected):
            self.journal.unneeded(self.config.origin(key), key, value, "as here")
        else:
            self.lose(key, note)


def checkpoint_of(
    name: str,
    criteria: list[list[Any]],
    origin: Origin,
    journal: Journal,
    option: str = "--inference_asr_model",
) -> tuple[list[list[Any]], str]:
    """Return the criteria and the file of weights for ESPnet2's `valid.acc.ave_10best.pth`.

    Args:
        name: Of `--inference_asr_model`.
        criteria: As the training has them.
        origin: Of the option.
        journal: Gets a line.
        option: That has the name.
    """
    found = re.fullmatch(
        r"valid\.(\w+)\.(?:(best)|ave(?:_(\d+)best)?)(?:\.till\d+epoch)?\.pth", name
    )
    first = criteria[0]
    if name in ("latest.pth", "checkpoint.pth"):
        journal.taken(origin, option, name, "model.weights: last.ckpt")
        return criteria, "${exp_dir}/last.ckpt"
    chosen = next((c for c in criteria if found and c[0] == f"valid/{found[1]}"), None)
    if chosen is None:
        chosen = first
        note = f"there is no such checkpoint here; that of {first[0]} is taken"
        journal.changes(origin, option, name, note, "model.weights")
    elif found:
        wanted = 1 if found[2] else int(found[3] or chosen[1])
        criteria = [[c[0], wanted, c[2]] if c is chosen else c for c in criteria]
        chosen = [chosen[0], wanted, chosen[2]]
        journal.taken(origin, option, name, "model.weights", "the average of the same checkpoints")
    stem = chosen[0].replace("/", ".")
    return criteria, f"${{exp_dir}}/{stem}.ave_{chosen[1]}best.safetensors"


def _default(recipe: SourceRecipe, name: str) -> str:
    return "" if name in recipe.options else "not set in run.sh: the default of asr.sh"
