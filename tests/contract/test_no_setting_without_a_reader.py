"""A scan for silence: each key that people know, put where it does not belong, for every stage.

None may be taken without a word, and no line that is offered instead may be refused when pasted.
"""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from espnet3.components.data.loader_config import LoaderConfig
from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.systems.asr.publication import load_publication_config
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.asr.tokenizer_training import load_tokenizer_config
from espnet3.systems.base.checks import Readers, check_config, is_compared, refuse_unread
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.datasets import check_data
from espnet3.systems.base.inference_config import check_inference
from espnet3.systems.base.metric_config import load_metrics_config
from espnet3.systems.base.report_clips import load_report_config
from espnet3.systems.base.stages import EVERYWHERE, find_stage, stages_of
from espnet3.systems.base.statistics import load_statistics_config
from espnet3.systems.base.training import load_loader_config
from espnet3.trainer.config import check_trainer
from espnet3.trainer.fit import check_fit
from espnet3.trainer.trainer_block import trainer_arguments
from tests.helpers.exhaustive import few

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "egs3" / "digits" / "asr"
FILES = {
    "training": "training.yaml", "inference": "inference.yaml", "metrics": "metrics.yaml",
    "publication": "publication.yaml",
}  # fmt: skip
STAGES = [s for s in stages_of(ASRSystem) if s.is_defined]

TEXT = """
    # Keys of ours, and of the public ESPnet3.
    dataset create_dataset tokenizer dataloader model task optimizer optimizers scheduler
    schedulers scheduler_interval scheduler_monitor trainer fit best_model_criterion
    parallel checkpoint init launch num_threads max_nonfinite_batches collect_stats device
    metrics report pack upload recipe_dir data_dir exp_tag exp_dir stats_dir inference_dir
    dataset_dir num_device num_nodes seed test_set input_key output_fn output_keys idx_key
    hyp_key ref_key batch_size batch_seconds output_artifacts results provider runner resume
    accept_changes freeze vars data_src data_src_args transform name params recipe
    preprocessor vocab_size model_type save_path text_builder collate_fn ckpt_path writer
    type sample_rate ref clean_types inputs n_workers env options queue cores memory
    walltime processes job_extra_directives on_error max_errors retry_failed item_timeout
    shards_per_worker pack_model stage_log_mode device_index sampler iter_factory
    accum_grad_steps step_every_n_iters gradient_clip_val monitor interval
    # Lightning's Trainer.
    accelerator strategy devices num_nodes precision logger callbacks fast_dev_run
    max_epochs min_epochs max_steps min_steps max_time limit_train_batches limit_val_batches
    limit_test_batches limit_predict_batches overfit_batches val_check_interval
    check_val_every_n_epoch num_sanity_val_steps log_every_n_steps enable_checkpointing
    enable_progress_bar enable_model_summary accumulate_grad_batches gradient_clip_val
    gradient_clip_algorithm deterministic benchmark inference_mode use_distributed_sampler
    profiler detect_anomaly barebones plugins sync_batchnorm
    reload_dataloaders_every_n_epochs default_root_dir enable_autolog_hparams model_registry
    # torch's DataLoader and optimizers.
    batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last
    timeout worker_init_fn multiprocessing_context generator prefetch_factor
    persistent_workers pin_memory_device in_order lr momentum betas eps
    # Hugging Face's TrainingArguments.
    output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate
    lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args
    weight_decay adam_beta1 adam_beta2 adam_epsilon gradient_accumulation_steps
    max_grad_norm label_smoothing_factor bf16 fp16 bf16_full_eval fp16_full_eval tf32
    gradient_checkpointing torch_compile neftune_noise_alpha auto_find_batch_size
    logging_strategy logging_steps logging_first_step logging_dir logging_nan_inf_filter
    log_level disable_tqdm report_to run_name eval_strategy evaluation_strategy eval_steps
    eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start
    eval_accumulation_steps save_only_model save_strategy save_steps save_total_limit
    push_to_hub hub_token hub_private_repo hub_model_id hub_strategy load_best_model_at_end
    metric_for_best_model greater_is_better ignore_data_skip full_determinism data_seed
    use_cpu no_cuda dataloader_drop_last dataloader_num_workers dataloader_pin_memory
    dataloader_persistent_workers dataloader_prefetch_factor remove_unused_columns
    label_names group_by_length length_column_name ddp_find_unused_parameters
    ddp_bucket_cap_mb ddp_backend ddp_timeout fsdp fsdp_config deepspeed debug do_train
    do_eval do_predict resume_from_checkpoint local_rank
    # ESPnet2's options and configs.
    nj inference_nj gpu_inference ngpu train_cmd cuda_cmd decode_cmd stage stop_stage
    asr_config lm_config inference_config asr_tag expdir dumpdir datadir nbpe bpemode
    token_type use_lm lm_weight ctc_weight beam_size nbest feats_type feats_normalize
    speed_perturb_factors fs audio_format train_set valid_set test_sets max_epoch patience
    accum_grad grad_clip batch_bins batch_type keep_nbest_models val_scheduler_criterion
    num_iters_per_epoch inference_args asr_args epochs early_stopping gpus batchsize n_gpus
    workers world_size lang
"""
WORDS = sorted({w for line in TEXT.splitlines() if "#" not in line for w in line.split()})


# A block, the stage that reads it, what checks it, and the words that are right there.
BLOCKS = {
    "trainer": ("train", check_trainer, " ".join(trainer_arguments())),
    "fit": ("train", check_fit, "ckpt_path"),
    "checkpoint": ("train", check_fit, ""),
    "optimizer": ("train", check_fit, "lr betas eps weight_decay"),
    "scheduler": ("train", check_fit, "max_lr epochs"),
    "dataloader": ("train", load_loader_config, "collate_fn"),
    "dataloader.train": ("train", load_loader_config, " ".join(LoaderConfig.model_fields)),
    "dataloader.valid": ("train", load_loader_config, " ".join(LoaderConfig.model_fields)),
    "dataset.train.0": ("train", check_data, "name data_src data_src_args transform"),
    "tokenizer": ("train_tokenizer", load_tokenizer_config, "vocab_size model_type save_path"),
    "collect_stats": (
        "collect_stats",
        load_statistics_config,
        "batch_size max_errors on_error resume",
    ),
    "parallel": ("infer", lambda loaded: None, ""),  # as every config is checked
    "runner": ("infer", check_inference, "batch_size batch_seconds"),
    "provider": ("infer", check_inference, "params"),
    "model": ("infer", check_inference, "device"),
    "dataset.test.0": ("infer", check_inference, "name data_src data_src_args transform"),
    "metrics.0": ("measure", load_metrics_config, "name"),
    "report": ("report", load_report_config, ""),
    "pack": ("pack_model", load_publication_config, "name"),
    "upload": ("upload_model", load_publication_config, ""),
}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Change into a copy of a shipped recipe."""
    for name in ("conf", "dataset"):
        shutil.copytree(DIGITS / name, tmp_path / "asr" / name)
    monkeypatch.chdir(tmp_path / "asr")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "asr"


@pytest.fixture
def refusal(recipe):
    """Return a function that says what the checks have to say about overrides; None if nothing."""
    loaded = {
        kind: load_configs({kind: [f"conf/{file}"]}, recipe_dir=recipe)
        for kind, file in FILES.items()
    }

    def call(stage, overrides, check=lambda loaded: None):
        kind = stage.configs[0]
        try:
            config = load_config(getattr(loaded[kind], kind), overrides)
            check_config(config, [stage.name])
            refuse_unread(Readers(ASRSystem(**{kind: config}), [stage]))
            check(config)
        except ConfigError as error:
            return str(error)
        return None

    return call


def reads(stage, word):
    return word in EVERYWHERE or word in {key.partition(".")[0] for key in stage.reads}


def sample(words, every, start):
    """Return some of the words, other ones for each stage; all if ESPNET3_ALL_WORDS is set."""
    return words if os.environ.get("ESPNET3_ALL_WORDS") else words[start % every :: every]


# How a refusal of a key reads; others are about its value, which is 3 here whatever it should be.
_OF_A_KEY = re.compile(r"reads? |not a known key|is no (?:argument|option)|belongs under|is called")


def scan(refusal, stage, words, prefix="", check=lambda loaded: None):
    """Give all words at once, again without those that were complained of, and paste what is told.

    Returns:
        The words that were taken, and what is said about the lines that were offered.
    """
    assert refusal(stage, [], check) is None  # or the rest would say nothing
    left, lines = list(words), set()
    while left and (told := refusal(stage, [f"{prefix}{word}=3" for word in left], check)):
        named = {word for word in left if re.search(rf"\b{prefix}{word}\b(?!\.)", told)}
        assert named, told
        left = [word for word in left if word not in named]
        lines.update(re.findall(r"Write: (.+?)(?:$|\n)", told))
    offered = [line for line in lines if "=" in line and "vars." not in line]
    answers = {line: refusal(stage, shlex.split(line)) for line in offered}
    return set(left), {k: v for k, v in answers.items() if v is not None and _OF_A_KEY.search(v)}


@pytest.mark.parametrize("stage", few(STAGES, 3), ids=lambda stage: stage.name)
def test_a_word_at_the_top(refusal, stage):
    words = [word for word in WORDS if not reads(stage, word)]
    taken, refused = scan(refusal, stage, sample(words, 8, STAGES.index(stage)))
    assert refused == {}
    # expdir is told to be exp_dir; the configs of the recipe refer to data_dir; what the weights
    # depend on is compared.
    compared = {word for word in taken if stage.configs == ("training",) and is_compared(word)}
    assert taken <= {"data_dir", "expdir", *(compared if stage.uses_weights else ())}


@pytest.mark.parametrize("block", few(BLOCKS, 5))
def test_a_word_in_a_block(refusal, block):
    name, check, known = BLOCKS[block]
    stage = find_stage(STAGES, name)
    # Some checks tell one key at a time, and each takes its time.
    words = [word for word in WORDS if word not in known.split()]
    words = sample(words, 32, list(BLOCKS).index(block))
    taken, refused = scan(refusal, stage, words, f"{block}.", check)
    assert refused == {}
    assert taken == set()


@pytest.mark.parametrize("block", sorted({block.partition(".")[0] for block in BLOCKS}))
def test_a_block_of_another_stage(refusal, block):
    others = [s for s in STAGES if not reads(s, block) and not s.uses_weights]
    told = {stage.name: refusal(stage, [f"{block}.anything=3"]) for stage in others}
    assert None not in told.values(), told
