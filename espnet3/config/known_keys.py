"""The keys of a recipe's configs by block, the stages that read them, and the values they take.

What other modules own is repeated here, as they are above this one; a test compares both. The
functions read a value as people write it elsewhere; each raises `Unfit` for what our key refuses.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
"""Those that every system knows, the most usual first."""

READERS: dict[str, tuple[str, ...]] = {
    "trainer": TRAIN,
    "fit": TRAIN,
    "optimizer": TRAIN,
    "optimizers": TRAIN,
    "launch": TRAIN,
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
    "batch_size", "batch_seconds", "batch_bins", "shape_file", "sample_rate",
    "batch_is_global", "max_padding", "shuffle", "drop_last", "min_seconds", "max_seconds",
    "on_error", "max_errors", "buffer_shards", "sampler", "batch_sampler", "num_workers",
    "prefetch_factor", "persistent_workers", "pin_memory", "timeout", "multiprocessing_context",
    "worker_init_fn",
)  # fmt: skip
SIZES = ("batch_size", "batch_seconds", "batch_bins", "batch_sampler")
"""Keys of a loader of which it needs one."""
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
    "dask", "ray",
)  # fmt: skip
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


class Unfit(ValueError):
    """The value cannot be meant for the key; the message, behind the key, says what that takes."""


class UnfitKey(Unfit):
    """The same as a whole sentence, which names the key of ours."""


def keep(value: Any) -> Any:
    """Return it as it is."""
    return value


def number(value: Any) -> float | int:
    """Return an int or a float; `1e-3` is a text in YAML."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise Unfit(f"takes a number, and this is {value!r:.60}") from None


def whole(value: Any, least: int = 0) -> int:
    """Return an int of `least` or more."""
    found = number(value)
    # Written as a negation, it also refuses NaN and infinity, for which `int` would raise.
    if not abs(found) < 2**63 or int(found) != found:
        raise Unfit(f"takes a whole number, and this is {value!r:.60}")
    if found < least:
        raise Unfit(f"takes {least} or more, and this is {value!r:.60}")
    return int(found)


def count(value: Any) -> int:
    """Return an int of 1 or more."""
    return whole(value, least=1)


def positive(value: Any) -> float | int:
    """Return a number above 0."""
    found = number(value)
    if not 0 < found < float("inf"):
        raise Unfit(f"takes a number above 0, and this is {value!r:.60}")
    return found


def not_negative(value: Any) -> float | int:
    """Return a number of 0 or more."""
    found = number(value)
    if not 0 <= found < float("inf"):
        raise Unfit(f"takes a number of 0 or more, and this is {value!r:.60}")
    return found


_SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "1", ""), True),
    **dict.fromkeys(("false", "no", "off", "0", "none"), False),
}


def switch(value: Any) -> bool:
    """Return true or false; a shell option without a value means true."""
    if str(value).lower() not in _SWITCHES:
        raise Unfit(f"takes true or false, and this is {value!r:.60}")
    return _SWITCHES[str(value).lower()]


def text(value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
        raise Unfit(f"takes a text, and this is {value!r:.60}")
    return str(value)


def names(value: Any) -> list[str]:
    """Read `a b`, `a,b` or a list."""
    parts = value if isinstance(value, list | tuple) else re.split(r"[\s,]+", str(value).strip())
    found = [str(part) for part in parts if str(part)]
    if not found:
        raise Unfit("takes a list of names")
    return found


def choice(*words: str) -> Callable[[Any], str]:
    """Return what takes one of these words only."""

    def chosen(value: Any) -> str:
        word = str(value).lower()
        if word not in words:
            raise Unfit(f"takes {' or '.join(words)}, and this is {value!r:.60}")
        return word

    return chosen


def pattern(form: str, example: str) -> Callable[[Any], str]:
    """Return what takes texts of one form."""

    def matched(value: Any) -> str:
        if not re.fullmatch(form, text(value), re.IGNORECASE):
            raise Unfit(f"takes texts such as {example}, and this is {value!r:.60}")
        return text(value)

    return matched


def built(value: Any) -> Any:
    """Return a `_target_`, or a list of such."""
    nodes = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(node, Mapping) and "_target_" in node for node in nodes):
        raise Unfit(f"takes classes by their _target_, and this is {value!r:.60}")
    return value


def mapping(value: Any) -> Any:
    """Return a block of keys."""
    if not isinstance(value, Mapping):
        raise Unfit(f"takes a block of keys, and this is {value!r:.60}")
    return value


def share(value: Any) -> float | int:
    """Return a number between 0 and 1."""
    found = positive(value)
    if found >= 1:
        raise Unfit(f"takes a number between 0 and 1, and this is {value!r:.60}")
    return found


def function(value: Any) -> Any:
    """Return a dotted path, or a `_target_`."""
    if isinstance(value, Mapping) or re.fullmatch(r"\w+(\.\w+)+", str(value)):
        return built(value) if isinstance(value, Mapping) else value
    raise Unfit(f"takes a dotted path such as src.data.collate, and this is {value!r:.60}")


def existing(value: Any) -> str:
    """Return the path of a file that is there."""
    if not Path(text(value)).exists():
        raise Unfit(f"takes a file, and {value!r:.200} does not exist")
    return text(value)


def trial(value: Any) -> bool | int:
    """Return what `fast_dev_run` takes."""
    return switch(value) if str(value).lower() in ("true", "false") else count(value)


def lines(value: Any) -> list[str]:
    """Return a list of texts, of which one may stand alone."""
    return [text(part) for part in (value if isinstance(value, list | tuple) else [value])]


def flow(value: Any) -> str:
    """Return a value as YAML on one line, to stand after `key=` or `key: `."""
    import yaml  # here: only what is wrong needs it

    is_plain = not isinstance(value, Mapping | list | tuple)
    # A text such as cuda:1 needs quotes within braces only.
    options: dict[str, Any] = {} if is_plain else {"default_flow_style": True}
    try:
        shown = yaml.safe_dump(value, width=100_000, sort_keys=False, allow_unicode=True, **options)
    except yaml.YAMLError:  # no plain value
        return "..."
    # PyYAML ends a bare scalar with a line of three dots.
    line = str(shown).strip().removesuffix("\n...")
    return line if "\n" not in line else "..."
