"""Words of other toolkits, and keys of ours in the wrong place: what each is called here.

From ESPnet2's shell recipes and configs, Lightning's `Trainer`, torch's `DataLoader`, Hugging
Face's `TrainingArguments`, SpeechBrain and NeMo. A word has one place for each kind of stage that
it can be meant for; `config.advice` chooses among them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Has = Callable[[str], bool]
"""Tells whether the config has a dotted key."""
Settings = dict[str, Any]
"""Values by dotted key; the first is what was asked for, others belong to it."""
Way = Callable[[Any, Has], Settings | str]
"""Translates a value; a text instead of settings says what to do where there is no counterpart."""


class Unfit(ValueError):
    """The value cannot be meant for the key; the message says what that takes."""


@dataclass(frozen=True)
class Place:
    """Where a word belongs in some stages."""

    stages: tuple[str, ...]
    way: Way
    why: str = ""


Rule = tuple[Place, ...]

TRAIN = ("train",)
TOKENS = ("train_tokenizer",)
STATISTICS = ("collect_stats",)
INFER = ("infer",)
WORKERS = ("infer", "collect_stats", "create_dataset", "train_tokenizer")
"""Those that spread their work over the workers of `parallel`."""
SCORE = ("measure", "report")
PACK = ("pack_model",)
UPLOAD = ("upload_model",)
ALL = (
    "train", "infer", "collect_stats", "create_dataset", "train_tokenizer", "average", "measure",
    "report", "pack_model", "upload_model", "pack_demo", "upload_demo",
)  # fmt: skip

READERS: dict[str, tuple[str, ...]] = {
    "trainer": TRAIN,
    "fit": TRAIN,
    "optimizer": TRAIN,
    "optimizers": TRAIN,
    "scheduler": TRAIN,
    "schedulers": TRAIN,
    "scheduler_interval": TRAIN,
    "scheduler_monitor": TRAIN,
    "checkpoint": TRAIN,
    "init": TRAIN,
    "freeze": TRAIN,
    "num_threads": TRAIN,
    "max_nonfinite_batches": TRAIN,
    "best_model_criterion": ("train", "average"),
    "dataloader": ("train", "collect_stats"),
    "collect_stats": STATISTICS,
    "tokenizer": TOKENS,
    "create_dataset": ("create_dataset",),
    "parallel": WORKERS,
    "device": INFER,
    "input_key": INFER,
    "output_fn": INFER,
    "output_keys": INFER,
    "output_artifacts": INFER,
    "idx_key": INFER,
    "hyp_key": INFER,
    "ref_key": INFER,
    "batch_size": INFER,
    "batch_seconds": INFER,
    "results": INFER,
    "provider": INFER,
    "runner": INFER,
    "test_set": ("infer", "measure", "report"),
    "metrics": SCORE,
    "report": ("report",),
    "pack": PACK,
    "upload": UPLOAD,
}
"""The stages that read a top-level key, where not all do."""

TRAINER_ARGUMENTS = (
    "accelerator", "accumulate_grad_batches", "barebones", "benchmark", "callbacks",
    "check_val_every_n_epoch", "detect_anomaly", "deterministic", "devices",
    "enable_autolog_hparams", "enable_checkpointing", "enable_model_summary",
    "enable_progress_bar", "fast_dev_run", "gradient_clip_algorithm", "gradient_clip_val",
    "inference_mode", "limit_predict_batches", "limit_test_batches", "limit_train_batches",
    "limit_val_batches", "log_every_n_steps", "logger", "max_epochs", "max_steps", "max_time",
    "min_epochs", "min_steps", "model_registry", "num_nodes", "num_sanity_val_steps",
    "overfit_batches", "plugins", "precision", "profiler", "reload_dataloaders_every_n_epochs",
    "strategy", "sync_batchnorm", "use_distributed_sampler", "val_check_interval",
)  # fmt: skip
"""Of Lightning's `Trainer`, which only the trainer may import."""

LOADER_KEYS = (
    "batch_size", "batch_seconds", "batch_bins", "shape_file", "sample_rate", "max_padding",
    "shuffle", "drop_last", "min_seconds", "max_seconds", "on_error", "max_errors",
    "buffer_shards", "sampler", "batch_sampler", "num_workers", "prefetch_factor",
    "persistent_workers", "pin_memory", "timeout", "multiprocessing_context", "worker_init_fn",
)  # fmt: skip
PARALLEL_KEYS = (
    "env", "n_workers", "options", "mode", "shards_per_worker", "retries", "item_timeout",
    "worker_timeout", "start_timeout", "adaptive", "max_lost_jobs", "max_successors",
)  # fmt: skip
RUNNER_KEYS = ("on_error", "max_errors", "resume", "retry_failed", "accept_changes")

OWN: Mapping[str, tuple[str, ...]] = {
    "": tuple(key for key in READERS),
    "trainer": (*TRAINER_ARGUMENTS, "default_root_dir"),
    "dataloader": ("collate_fn", "train", "valid"),
    "dataloader.train": LOADER_KEYS,
    "dataloader.valid": LOADER_KEYS,
    "parallel": PARALLEL_KEYS,
    "runner": (*RUNNER_KEYS, "batch_size", "batch_seconds", "output_dir", "shard_subdir"),
    "checkpoint": ("every_n_steps", "every_minutes"),
    "tokenizer": (
        "model_type", "vocab_size", "save_path", "clean_types", "character_coverage",
        "text_builder",
    ),
    "collect_stats": (
        "batch_size", "on_error", "max_errors", "retry_failed", "resume", "accept_changes",
        "model_keys",
    ),
    "upload": ("repo_id", "private", "revision", "message"),
    "report": ("n_worst", "audio_megabytes", "audio_key", "sample_rate"),
}  # fmt: skip
"""The keys of our own blocks, as far as people write them elsewhere."""

ENVS = (
    "local", "local_gpu", "slurm", "pbs", "sge", "lsf", "oar", "htcondor", "moab", "ssh", "kube",
    "dask",
)  # fmt: skip

_ENV_WORDS = {
    "local_gpu": "gpu gpus cuda multi_gpu multigpu localgpu gpu_local local-gpu local_cuda "
    "dask_cuda nvidia mps rocm ddp",
    "local": "cpu cpus process processes multiprocessing multiprocess mp thread threads "
    "local_cpu localhost run.pl parallel.pl joblib pool default none single serial laptop",
    "slurm": "sbatch srun slurm.pl slurmcluster salloc slurm_gpu",
    "pbs": "qsub pbs.pl pbspro openpbs torque",
    "sge": "queue.pl uge gridengine grid_engine sungridengine",
    "lsf": "bsub lsf.pl",
    "oar": "oarsub",
    "htcondor": "condor condor_submit",
    "moab": "msub",
    "ssh": "ssh.pl hosts",
    "kube": "k8s kubernetes kubectl gke eks aks",
    "dask": "distributed dask_scheduler scheduler",
}
_ENVS_BY_WORD = {word: env for env, words in _ENV_WORDS.items() for word in words.split()}


def env_for(word: Any) -> str | None:
    """Return the `parallel.env` that a word, or a command such as `queue.pl --mem 4G`, means."""
    first = str(word).strip().lower().split(" ")[0].rpartition("/")[2]
    if first in ENVS:
        return first
    return _ENVS_BY_WORD.get(first) or _ENVS_BY_WORD.get(first.replace("-", "_"))


# Values


def _keep(value: Any) -> Any:
    return value


def _number(value: Any) -> float | int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        return float(str(value)) if not str(value).lstrip("+-").isdigit() else int(str(value))
    except ValueError:
        raise Unfit(f"takes a number, and this is {value!r:.60}") from None


def _count(value: Any) -> int:
    return _whole(value, least=1)


def _whole(value: Any, least: int = 0) -> int:
    number = _number(value)
    if number != number or number in (float("inf"), -float("inf")) or int(number) != number:
        raise Unfit(f"takes a whole number, and this is {value!r:.60}")
    if number < least:
        raise Unfit(f"takes {least} or more, and this is {value!r:.60}")
    return int(number)


def _positive(value: Any) -> float | int:
    number = _number(value)
    if not 0 < number < float("inf"):
        raise Unfit(f"takes a number above 0, and this is {value!r:.60}")
    return number


def _switch(value: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "on": True, "": True}
    words |= {"false": False, "no": False, "0": False, "off": False, "none": False}
    if str(value).lower() not in words:
        raise Unfit(f"takes true or false, and this is {value!r:.60}")
    return words[str(value).lower()]


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
        raise Unfit(f"takes a text, and this is {value!r:.60}")
    return str(value)


def _names(value: Any) -> list[str]:
    """Read `a b`, `a,b` or a list."""
    parts = value if isinstance(value, list | tuple) else re.split(r"[\s,]+", str(value).strip())
    return [str(part) for part in parts if str(part)]


# Ways


def to(key: str, convert: Callable[[Any], Any] = _keep, **more: Any) -> Way:
    """Return the way to one key, with fixed values of others; `__` stands for their dots."""

    def write(value: Any, has: Has) -> Settings:
        try:
            return {key: convert(value), **{k.replace("__", "."): v for k, v in more.items()}}
        except Unfit as unfit:
            raise Unfit(f"The key of ours is {key}, which {unfit}.") from None

    return write


def tell(text: str) -> Way:
    """Return the way that only says what to do."""
    return lambda value, has: text.replace("{value}", f"{value}")


def _is_all(value: Any) -> bool:
    return value is True or str(value).lower() in ("auto", "-1", "all")


def _gpu_list(value: Any) -> list[int] | None:
    """Return the GPUs that `[0, 1]` or `0,1` names; None for a count."""
    if isinstance(value, str) and "," in value:
        value = [part for part in value.split(",") if part.strip()]
    return [_whole(one) for one in value] if isinstance(value, list | tuple) else None


def _devices(value: Any, has: Has) -> Settings | str:
    if str(value) == "0" or value is False:
        return {"trainer.accelerator": "cpu"}
    if _is_all(value):
        return {"trainer.devices": "auto"}
    named = _gpu_list(value)
    return {"trainer.devices": named} if named else to("trainer.devices", _count)(value, has)


def _gpu_workers(value: Any, has: Has) -> Settings | str:
    if str(value) == "0" or value is False:
        return {"device": "cpu"}
    # A config that says device: cpu would keep the models of all workers there.
    free = {"device": None} if has("device") else {}
    if _is_all(value):
        return {"parallel.env": "local_gpu", **free}
    named = _gpu_list(value)
    count = len(named) if named else to("parallel.n_workers", _count)(value, has)
    settings = count if isinstance(count, dict) else {"parallel.n_workers": count}
    return {**settings, "parallel.env": "local_gpu", **free}


_TWO_LAYERS = "trainer is for training, parallel for the workers of the other stages."

DEVICES: Rule = (
    Place(TRAIN, _devices, f"{_TWO_LAYERS} GPUs need trainer.accelerator: gpu or auto as well."),
    Place(WORKERS, _gpu_workers, f"{_TWO_LAYERS} Each worker of local_gpu has a GPU of its own."),
)
N_WORKERS: Rule = (
    Place(WORKERS, to("parallel.n_workers", _count), _TWO_LAYERS),
    Place(TRAIN, _devices, _TWO_LAYERS),
)
LOADER_WORKERS: Rule = (
    Place(TRAIN, to("dataloader.train.num_workers", _whole), "They read the samples to train on."),
    Place(WORKERS, to("parallel.n_workers", _count), _TWO_LAYERS),
)
OF_INFERENCE: Rule = (Place(INFER, to("parallel.n_workers", _count), _TWO_LAYERS),)


def _batch_size(value: Any, has: Has) -> Settings | str:
    if has("dataloader.train.batch_sampler"):
        return (
            "dataloader.train.batch_sampler makes the batches; their size is its argument."
        )
    return to("dataloader.train.batch_size", _count)(value, has)


BATCH_SIZE: Rule = (
    Place(TRAIN, _batch_size, "It is the batch of one process."),
    Place(INFER, to("batch_size", _count), "At the top it is that of infer."),
    Place(STATISTICS, to("collect_stats.batch_size", _count)),
)


def _of_optimizer(name: str) -> Way:
    """Return the way to an argument of the optimizer, of which there may be several."""

    def write(value: Any, has: Has) -> Settings | str:
        if has("optimizers"):
            return (
                "There are several optimizers; write it for the one that you mean: "
                f"optimizers.NAME.optimizer.{name}={value}"
            )
        if name == "lr" and has("scheduler.max_lr"):
            # OneCycleLR and CyclicLR replace the rate of the optimizer from the first step on.
            return to("scheduler.max_lr", _positive)(value, has)
        return to(f"optimizer.{name}", _number)(value, has)

    return write


LR: Rule = (Place(TRAIN, _of_optimizer("lr"), "It is an argument of the optimizer."),)

STOPPING = "lightning.pytorch.callbacks.EarlyStopping"


def _early_stopping(value: Any, has: Has) -> Settings | str:
    given = dict(value) if isinstance(value, Mapping) else {}
    if value is False or str(value).lower() in ("false", "none", "0"):
        return "There is no early stopping unless trainer.callbacks has it, so delete the line."
    patience = given.get("patience", 3 if isinstance(value, bool | Mapping) else value)
    monitor = given.get("monitor", "valid/loss")
    callback = {
        "_target_": STOPPING,
        "monitor": re.sub(r"^(eval|val|dev)[_/]", "valid/", str(monitor)),
        "patience": _whole(patience),
    }
    if "mode" in given:
        callback["mode"] = given["mode"]
    if has("trainer.callbacks"):
        return f"It is a callback; add to the list trainer.callbacks: {_as_yaml(callback)}"
    return {"trainer.callbacks": [callback]}


def _as_yaml(node: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in node.items()) + "}"


STOP_EARLY: Rule = (Place(TRAIN, _early_stopping, "It is a callback of Lightning."),)

WORDS: dict[str, Rule] = {}
BLOCKS: dict[str, dict[str, Rule]] = {}


def _add(rule: Rule, words: str) -> None:
    WORDS.update(dict.fromkeys(words.split(), rule))


_add(DEVICES, "devices gpus ngpu n_gpu n_gpus num_gpus num_gpu num_device num_devices n_devices")
_add(N_WORKERS, "n_workers nj n_jobs num_jobs workers n_worker")
_add(OF_INFERENCE, "inference_nj decode_nj")
_add(LOADER_WORKERS, "num_workers dataloader_num_workers")
_add(BATCH_SIZE, "batch_size train_batch_size per_device_train_batch_size")
_add(LR, "lr learning_rate base_lr")
_add(STOP_EARLY, "early_stopping early_stop patience early_stopping_patience")
_add((Place(TRAIN, to("trainer.max_epochs", _count)),),
     "epochs epoch n_epochs num_epochs max_epoch num_train_epochs number_of_epochs")  # fmt: skip
_add((Place(TRAIN, to("trainer.accumulate_grad_batches", _count)),),
     "gradient_accumulation_steps accum_grad grad_accum gradient_accumulation")  # fmt: skip
_add((Place(TRAIN, to("trainer.gradient_clip_val", _number)),),
     "grad_clip max_grad_norm gradient_clip grad_clip_norm clip_grad_norm")  # fmt: skip
for _name in TRAINER_ARGUMENTS:
    WORDS.setdefault(_name, (Place(TRAIN, to(f"trainer.{_name}")),))
for _name in PARALLEL_KEYS:
    WORDS.setdefault(_name, (Place(WORKERS, to(f"parallel.{_name}")),))

BLOCKS["parallel"] = {"num_workers": N_WORKERS, "workers": N_WORKERS}

HOMES = {
    **dict.fromkeys(PARALLEL_KEYS[1:2] + PARALLEL_KEYS[4:5] + PARALLEL_KEYS[6:9], "parallel"),
    **dict.fromkeys(RUNNER_KEYS, "runner"),
    **dict.fromkeys(
        ("devices", "accelerator", "strategy", "precision", "max_epochs", "max_steps"), "trainer"
    ),
    "num_workers": "dataloader.train",
    "collate_fn": "dataloader",
}
"""Keys that people write at the top, and the block that they belong to."""

BLOCK_HOMES = {
    block: {
        **{key: home for key, home in HOMES.items() if home.partition(".")[0] in others},
        **({"env": "parallel"} if "parallel" in others and block != "dataloader" else {}),
    }
    for block, others in {
        "trainer": ("parallel", "runner"),
        "parallel": ("trainer", "runner", "dataloader"),
        "runner": ("parallel", "trainer"),
        "dataloader": ("parallel", "trainer"),
    }.items()
}
"""The same for keys that stand in the wrong block."""
