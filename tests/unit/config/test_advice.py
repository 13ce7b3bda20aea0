"""Each word of another toolkit gets a line of ours that is accepted where it is pasted."""

import dataclasses
import functools
import inspect
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from espnet3.config.advice import Advice, advise
from espnet3.config.foreign_keys import BLOCKS, WORDS
from espnet3.config.known_keys import (
    ALL,
    ENVS,
    LOADER_KEYS,
    OWN,
    PARALLEL_KEYS,
    READERS,
    TRAINER_ARGUMENTS,
)
from espnet3.config.value_translations import env_for
from espnet3.errors import MissingExtraError, ResourceError
from espnet3.systems.asr.publication import load_publication_config
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.base.checks import check_stages
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.stages import STAGES, find_stage, stages_of
from espnet3.trainer.config import CheckpointConfig
from espnet3.trainer.launching.job_script import load_launch_config

PARTS = "tests.helpers.inference_parts"
TRAINING = f"""\
tokenizer: {{model_type: characters, save_path: tokenizer}}
dataset:
  train: [{{data_src: {PARTS}, data_src_args: {{n: 4}}}}]
  valid: [{{data_src: {PARTS}, data_src_args: {{n: 2}}}}]
dataloader: {{train: {{batch_seconds: 10}}}}
model: {{_target_: tests.helpers.statistics_models.Model}}
optimizer: {{_target_: torch.optim.AdamW, lr: 0.01}}
launch: {{scheduler: slurm}}
trainer: {{accelerator: cpu, devices: 1, max_epochs: 2, logger: false}}
"""
INFERENCE = f"""\
dataset:
  test: [{{name: digits, data_src: {PARTS}, data_src_args: {{n: 4}}}}]
model: {{_target_: {PARTS}.Speller, beam_size: 5}}
"""
PUBLICATION = "pack: {license: other}\nupload: {repo_id: a/b}\n"
KINDS = {
    "training": (
        TRAINING,
        ("train", "collect_stats", "create_dataset", "train_tokenizer"),
    ),
    "inference": (INFERENCE, ("infer",)),
    "publication": (PUBLICATION, ("pack_model", "upload_model")),
}

VALUES: dict[str, Any] = {
    "env": "gpu", "cmd": "slurm.pl", "decode_cmd": "queue.pl", "train_cmd": "condor",
    "backend": "pbs", "device": "cpu", "accelerator": "cpu", "strategy": "ddp",
    "precision": "bf16", "callbacks": [], "plugins": [], "profiler": "simple",
    "max_time": "00:01:00:00", "logger": "tensorboard", "on_error": "skip", "resume": True,
    "accept_changes": ["model"], "mode": "sync", "options": {}, "adaptive": None,
    "collate_fn": "espnet3.components.data.collate.PadCollate", "text_builder": None,
    "multiprocessing_context": "fork", "shape_file": None, "sampler": None,
    "gradient_clip_algorithm": "norm", "report_to": "none", "token_type": "char",
    "model_type": "bpe", "max_padding": 0.1, "trainer": {"devices": 2, "accelerator": "gpu"},
    "parallel": {"env": "local_gpu", "n_workers": 2}, "character_coverage": 0.9,
    "dataloader": {"train": {"batch_size": 2}}, "pack_model": {"name": "x"},
    "bpe_char_cover": 0.9, "hub_model_id": "a/c", "interval": "step", "monitor": "valid_loss",
    "resume_from_checkpoint": "a.ckpt", "init_param": "a.ckpt", "ckpt_path": "a.ckpt",
    "checkpoint_path": "a.ckpt", "metric_for_best_model": "eval_wer", "overfit_batches": 0.0,
}  # fmt: skip
"""One that the word is used with; others are tried with numbers, switches and texts."""


def tried_values(word: str) -> list[Any]:
    return [VALUES[word]] if word in VALUES else [2, True, "a"]


def all_words() -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Yield the path of each word, a stage that it is meaningful for, and a value."""
    rules = {(word,): rule for word, rule in WORDS.items()}
    for block, words in BLOCKS.items():
        rules |= {(*filter(None, block.split(".")), w): rule for w, rule in words.items()}
    for path, rule in rules.items():
        for stage in {stage: None for place in rule for stage in place.stages}:
            for value in tried_values(path[-1]):
                yield path, stage, value


@functools.cache
def all_advice() -> list[tuple[str, Advice]]:
    """Return each word as it would be written, and the advice."""
    found = [
        (f"{stage} {'.'.join(path)}={value}", advise(path, value, [stage]))
        for path, stage, value in all_words()
    ]
    return [(word, advice) for word, advice in found if advice is not None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("recipe")
    for kind, (text, _) in KINDS.items():
        (folder / f"{kind}.yaml").write_text(text)
    (folder / "a.ckpt").touch()
    return folder


def load(folder: Path, stage: str, *overrides: str) -> dict[str, Any]:
    kind = next(kind for kind, (_, stages) in KINDS.items() if stage in stages)
    files = {kind: [folder / f"{kind}.yaml"]}
    return vars(load_configs(files, [f"recipe_dir={folder}", *overrides]))


def check(folder: Path, stage: str, *overrides: str) -> None:
    """Check a real config with further settings as run.py does before a stage."""
    configs = load(folder, stage, *overrides)
    if stage in KINDS["publication"][1]:  # what it checks beyond the keys needs a trained model
        load_publication_config(configs["publication"])
        return
    launching = [word for word in overrides if word.startswith("launch.")]
    if launching:  # which `espnet3 launch` keeps to itself
        load_launch_config(configs["training"])
        configs = load(folder, stage, *(word for word in overrides if word not in launching))
    check_stages(ASRSystem(**configs), [find_stage(stages_of(ASRSystem), stage)], dry_run=True)


def refusals(folder: Path, stage: str, lines: list[tuple[str, Advice]]) -> list[str]:
    """Check lines together, and one by one only if that fails: each check takes its time."""
    words = [word for _, advice in lines for word in shlex.split(advice.override())]
    try:
        check(folder, stage, *words)
    except (ResourceError, MissingExtraError):
        if len(lines) == 1:
            return []  # the word is right, and this machine lacks what it asks for
    except Exception as error:
        if len(lines) == 1:
            return [f"{lines[0][0]}: {words}: {error}"]
    else:
        return []
    half = len(lines) // 2
    return [one for part in (lines[:half], lines[half:]) for one in refusals(folder, stage, part)]


def packed(lines: list[tuple[str, Advice]]) -> list[list[tuple[str, Advice]]]:
    """Put lines that set different keys together."""
    groups: list[tuple[set[str], list[tuple[str, Advice]]]] = []
    for word, advice in lines:
        keys = set(advice.settings)
        fitting = (group for used, group in groups if not _overlap(used, keys))
        group = next(fitting, None)
        if group is None:
            group = []
            groups.append((set(), group))
        next(used for used, known in groups if known is group).update(keys)
        group.append((word, advice))
    return [group for _, group in groups]


def _overlap(used: set[str], keys: set[str]) -> bool:
    return any(
        f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.") for a in used for b in keys
    )


@pytest.mark.parametrize("stage", [stage for _, stages in KINDS.values() for stage in stages])
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_line_is_accepted_where_it_is_pasted(folder, monkeypatch, stage, every):
    monkeypatch.chdir(folder)
    has = next(loaded for loaded in load(folder, stage).values() if loaded).has
    lines: dict[str, tuple[str, Advice]] = {}
    for path, its_stage, value in all_words():
        advice = advise(path, value, [stage], has=has) if stage == its_stage else None
        if advice is not None and advice.key:
            lines.setdefault(advice.override(), (f"{'.'.join(path)}={value}", advice))
    groups = packed([*lines.values()][::every])
    refused = [one for group in groups for one in refusals(folder, stage, group)]
    assert not refused, "\n".join(refused)
    assert lines


def test_a_line_of_yaml_says_the_same_as_the_override():
    for _, advice in all_advice():
        parsed = yaml.safe_load(advice.line()) if advice.key else None
        for key, value in advice.settings.items():
            found = parsed
            for part in key.split("."):
                found = found[part]
            assert found == value, advice


def test_what_has_no_counterpart_says_what_to_do():
    for word, advice in all_advice():
        assert advice.key or len(advice.why) > 20, word
        assert "{value}" not in advice.why


# The tables that repeat what modules above own


def test_the_arguments_of_the_trainer_are_those_of_lightning():
    from lightning.pytorch import Trainer

    theirs = set(inspect.signature(Trainer.__init__).parameters) - {"self", "default_root_dir"}
    assert set(TRAINER_ARGUMENTS) == theirs


def test_the_keys_of_blocks_are_those_of_their_models():
    from espnet3.components.data.loader_config import LoaderConfig
    from espnet3.parallel.clusters.registry import BACKENDS
    from espnet3.parallel.config import ParallelConfig
    from espnet3.systems.asr.publication import UploadConfig
    from espnet3.systems.asr.tokenizer_training import TokenizerConfig
    from espnet3.systems.base.report_clips import ReportConfig
    from espnet3.systems.base.statistics import StatisticsConfig

    assert set(LOADER_KEYS) == set(LoaderConfig.model_fields)
    assert set(PARALLEL_KEYS) == set(ParallelConfig.model_fields)
    assert set(OWN["tokenizer"]) == set(TokenizerConfig.model_fields)
    assert set(OWN["collect_stats"]) == set(StatisticsConfig.model_fields)
    assert set(OWN["checkpoint"]) == set(CheckpointConfig.model_fields)
    assert set(OWN["upload"]) == set(UploadConfig.model_fields)
    assert set(OWN["report"]) == set(ReportConfig.model_fields)
    assert set(ENVS) == set(BACKENDS)


def test_stages_read_the_keys_that_are_advised_for_them():
    # `Stage.reads` is the fact; advice for a stage that does not read a key would be refused.
    reads = {known.name: {key.partition(".")[0] for key in known.reads} for known in STAGES}
    wrong = [(k, name) for k, names in READERS.items() for name in names if k not in reads[name]]
    assert [pair for pair in wrong if pair[0] != "launch"] == []  # which `espnet3 launch` reads


def test_all_stages_are_known():
    assert set(ALL) == {stage.name for stage in stages_of(ASRSystem)}


def test_each_argument_of_other_trainers_gets_an_answer():
    transformers = pytest.importorskip("transformers")
    from torch.utils.data import DataLoader

    theirs = [field.name for field in dataclasses.fields(transformers.TrainingArguments)]
    theirs += [*inspect.signature(DataLoader.__init__).parameters][2:]
    silent = [
        (name, stage)
        for name in (*theirs, *TRAINER_ARGUMENTS)
        for stage in ("train", "infer")
        if advise((name,), None, [stage]) is None and name not in OWN[""] and name != "seed"
    ]
    assert not silent


# Single cases


@pytest.mark.parametrize(
    ("key", "value", "stage", "right"),
    [
        ("lr", 0.1, "train", "optimizer.lr=0.1"),
        ("batch_size", 4, "train", "dataloader.train.batch_size=4"),
        ("epochs", 5, "train", "trainer.max_epochs=5"),
        ("gradient_accumulation_steps", 2, "train", "trainer.accumulate_grad_batches=2"),
        ("num_device", 4, "train", "trainer.devices=4"),
        ("parallel.n_workers", 4, "train", "trainer.devices=4"),
        ("parallel.env", "local_gpu", "train", "trainer.accelerator=gpu"),
        ("n_workers", 4, "train", "trainer.devices=4"),
        ("trainer.devices", 2, "infer", "parallel.n_workers=2 parallel.env=local_gpu"),
        ("dataloader.batch_size", 4, "infer", "batch_size=4"),
        ("dataloader.train.batch_size", 4, "infer", "batch_size=4"),
        ("dataloader.batch_size", 4, "train", "dataloader.train.batch_size=4"),
        ("parallel.num_workers", 2, "infer", "parallel.n_workers=2"),
        ("trainer.num_workers", 2, "train", "dataloader.train.num_workers=2"),
        ("devices", 2, "infer", "parallel.n_workers=2 parallel.env=local_gpu"),
        ("devices", [0, 3], "infer", "parallel.n_workers=2 parallel.env=local_gpu"),
        ("devices", "0,3", "train", "'trainer.devices=[0, 3]' trainer.accelerator=gpu"),
        ("ngpu", 2, "train", "trainer.devices=2 trainer.accelerator=gpu"),
        ("ngpu", 0, "train", "trainer.accelerator=cpu"),
        ("ngpu", 0, "infer", "device=cpu"),
        ("parallel.env", "gpu", "infer", "parallel.env=local_gpu"),
        ("trainer.gpus", 2, "train", "trainer.devices=2 trainer.accelerator=gpu"),
        ("trainer.batch_size", 8, "train", "dataloader.train.batch_size=8"),
        ("trainer.lr", 0.1, "train", "optimizer.lr=0.1"),
        ("parallel.devices", 4, "infer", "parallel.n_workers=4 parallel.env=local_gpu"),
        ("nj", 8, "infer", "parallel.n_workers=8"),
        ("inference_nj", 8, "infer", "parallel.n_workers=8"),
        ("parallel.cmd", "queue.pl --mem 4G", "infer",
         "parallel.env=sge parallel.options.cores=4 parallel.options.memory=16GB"),
        ("decode_cmd", "slurm.pl --config conf/slurm.conf", "infer",
         "parallel.env=slurm parallel.options.cores=4 parallel.options.memory=16GB"),
        ("gpu_inference", True, "infer", "parallel.env=local_gpu"),
        ("max_epoch", 50, "train", "trainer.max_epochs=50"),
        ("accum_grad", 4, "train", "trainer.accumulate_grad_batches=4"),
        ("grad_clip", 5, "train", "trainer.gradient_clip_val=5"),
        ("batch_bins", 16000000, "train", "dataloader.train.batch_seconds=1000"),
        ("keep_nbest_models", [10], "train", "'best_model_criterion=[[valid/loss, 10, min]]'"),
        ("nbpe", 500, "train_tokenizer",
         "tokenizer.vocab_size=500 tokenizer.model_type=unigram"),
        ("learning-rate", "1e-3", "train", "optimizer.lr=0.001"),
        ("dumpdir", "dump", "create_dataset", "data_dir=dump"),
        ("output_dir", "out", "pack_model", "pack.output_dir=out"),
        ("trainer.seed", 3, "train", "seed=3"),
        ("trainer.scheduler_interval", "step", "train", "scheduler_interval=step"),
        ("dataloader.train.n_workers", 2, "train", "dataloader.train.num_workers=2"),
        ("parallel.accelerator", "gpu", "infer", "parallel.env=local_gpu"),
        ("accelerator", "cuda:1", "infer", "device=cuda:1"),
        ("parallel.options.partition", "gpu", "infer", "parallel.options.queue=gpu"),
        ("create_dataset.nj", 4, "create_dataset", "parallel.n_workers=4"),
        ("eval_steps", 500, "train",
         "trainer.val_check_interval=500 trainer.check_val_every_n_epoch=null"),
    ],
)  # fmt: skip
def test_the_line_fits_the_stage(key, value, stage, right):
    advice = advise(tuple(key.split(".")), value, [stage])
    assert advice is not None
    assert advice.override() == right


@pytest.mark.parametrize(
    ("key", "value", "stage", "told"),
    [
        ("lr", 0.1, "infer", "train would read optimizer.lr=0.1"),
        ("trainer.max_epochs", 3, "infer", "means nothing to infer"),
        ("asr_config", "conf/a.yaml", "train", "--training_config conf/a.yaml"),
        ("inference_config", "conf/b.yaml", "infer", "--inference_config conf/b.yaml"),
        ("stage", 3, "train", "--stage 3"),
        ("parallel.env", "k8s", "infer", "env: kube, options: {image:"),
        ("parallel.env", "slurm", "train", "espnet3 launch"),
        ("nj", "many", "infer", "parallel.n_workers, which takes a number"),
        ("nj", 0, "infer", "takes 1 or more"),
        ("fp16", "O1", "train", "fp16 takes true or false, and this is 'O1'."),
        ("parallel", None, "train", "Delete the block here"),
        ("task", "asr", "train", "Delete the line"),
        ("stage_log_mode", "split", "train", "delete the line"),
        ("use_lm", False, "infer", "decoder"),
    ],
)
def test_where_there_is_no_line_the_sentence_says_what_to_do(key, value, stage, told):
    advice = advise(tuple(key.split(".")), value, [stage])
    assert advice is not None
    assert not advice.key
    assert told in advice.why


@pytest.mark.parametrize(
    ("key", "value", "stages"),
    [
        ("trainer.devices", 2, ["train"]),
        ("trainer.devices", 2, ["train", "infer"]),
        ("parallel.n_workers", 2, ["train", "infer"]),
        ("parallel.env", "local", ["infer"]),
        ("parallel.env", "slurm", ["infer"]),
        ("parallel.env", "mine", ["infer"]),
        ("dataloader.valid.batch_size", 2, ["train"]),
        ("seed", 1, ["train"]),
        ("batch_size", 1, ["infer"]),
        ("my_own_key", 1, ["infer"]),
        ("trainer", {"devices": 2}, ["train"]),
    ],
)
def test_what_is_right_or_unknown_gets_no_advice(key, value, stages):
    assert advise(tuple(key.split(".")), value, stages) is None


@pytest.mark.parametrize(
    ("key", "value", "config", "right"),
    [
        ("lr", 0.1, ["scheduler.max_lr"], "optimizer.lr=0.1 scheduler.max_lr=0.1"),
        ("lr", 0.1, ["optimizers"], ""),
        (
            "dataloader.valid.max_duration",
            20,
            ["dataloader.valid.batch_size"],
            "dataloader.valid.max_seconds=20",
        ),
        ("dataloader.valid.max_duration", 20, [], "dataloader.train.max_seconds=20"),
        ("batch_size", 4, ["dataloader.train.batch_sampler"], ""),
        ("patience", 4, ["trainer.callbacks"], ""),
        ("warmup_steps", 10, ["scheduler", "scheduler.warmup_steps"], "scheduler.warmup_steps=10"),
        ("warmup_steps", 10, ["scheduler"], ""),
        ("nbpe", 500, ["tokenizer.vocab_size"], "tokenizer.vocab_size=500"),
    ],
)
def test_the_line_fits_what_the_config_has(key, value, config, right):
    stages = ["train_tokenizer"] if key == "nbpe" else ["train"]
    advice = advise(tuple(key.split(".")), value, stages, has=config.__contains__)
    assert advice is not None
    assert advice.override() == right


def test_gpus_for_infer_take_the_model_off_the_cpu_that_a_config_names():
    advice = advise(("ngpu",), 2, ["infer"], has=["device"].__contains__)
    assert advice is not None
    assert advice.settings == {
        "parallel.n_workers": 2, "parallel.env": "local_gpu", "device": None
    }  # fmt: skip


def test_a_secret_is_not_repeated():
    secret = "hf_" + "a1" * 20
    for word in ("hub_token", "run_name", "nj"):
        advice = advise((word,), secret, ["train"])
        assert advice is not None
        assert secret not in advice.override() + advice.line() + advice.why or word == "run_name"


@pytest.mark.parametrize(
    ("word", "env"),
    [
        ("gpu", "local_gpu"), ("cuda", "local_gpu"), ("multi_gpu", "local_gpu"),
        ("multi-gpu", "local_gpu"), ("cpu", "local"), ("process", "local"), ("run.pl", "local"),
        ("sbatch", "slurm"), ("Slurm", "slurm"), ("qsub", "pbs"), ("queue.pl", "sge"),
        ("bsub", "lsf"), ("k8s", "kube"), ("kubernetes", "kube"), ("condor", "htcondor"),
        ("utils/slurm.pl --mem 4G", "slurm"), ("moon", None),
    ],
)  # fmt: skip
def test_words_for_places_to_run(word, env):
    assert env_for(word) == env
