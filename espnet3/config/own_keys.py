"""The keys of a recipe's configs by block, and the stages that read them.

What other modules own is repeated here, as they are above this one; a test compares both.
"""

from collections.abc import Mapping

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
    "batch_size", "batch_seconds", "batch_bins", "shape_file", "sample_rate", "max_padding",
    "shuffle", "drop_last", "min_seconds", "max_seconds", "on_error", "max_errors",
    "buffer_shards", "sampler", "batch_sampler", "num_workers", "prefetch_factor",
    "persistent_workers", "pin_memory", "timeout", "multiprocessing_context", "worker_init_fn",
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
    "dask",
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
