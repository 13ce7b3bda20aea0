"""Map keys of other toolkits, and misplaced keys of ours, to our keys.

From ESPnet2's shell recipes and configs, the public ESPnet3, Lightning's `Trainer`, torch's
`DataLoader`, Hugging Face's `TrainingArguments`, SpeechBrain and NeMo. A word has one place for
each kind of stage that it can be meant for; `config.advice` chooses among them.
"""

from collections.abc import Callable
from typing import Any

from espnet3.config import known_keys as takes
from espnet3.config import value_translations as ways
from espnet3.config.known_keys import (
    ALL,
    INFER,
    LOADER_KEYS,
    PACK,
    PARALLEL_KEYS,
    RUNNER_KEYS,
    SCORE,
    STATISTICS,
    TOKENS,
    TRAIN,
    TRAINER_ARGUMENTS,
    UPLOAD,
    WORKERS,
    count,
    switch,
    text,
    whole,
)
from espnet3.config.value_translations import Place, Rule, Way, if_on, tell, to

WORDS: dict[str, Rule] = {}
"""By the word, with `_` for `-`, wherever it stands."""
BLOCKS: dict[str, dict[str, Rule]] = {}
"""Words with another meaning in a block of ours; the empty name is for blocks as a whole."""


def _add(words: str, *places: Place) -> None:
    WORDS.update(dict.fromkeys(words.split(), places))


def _in(block: str, words: str, *places: Place) -> None:
    BLOCKS.setdefault(block, {}).update(dict.fromkeys(words.split(), places))


def _renamed(
    block: str, stages: tuple[str, ...], keys: dict[str, tuple[str, Callable[[Any], Any]]]
) -> None:
    for words, (ours, convert) in keys.items():
        _in(block, words, Place(stages, to(f"{block}.{ours}", convert)))


def _train(words: str, way: Way, why: str = "") -> None:
    _add(words, Place(TRAIN, way, why))


def _say(words: str, sentence: str) -> None:
    _add(words, Place(ALL, tell(sentence)))


# fmt: off
_ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("benchmark", "detect_anomaly", "enable_autolog_hparams", "inference_mode",
                     "enable_model_summary", "enable_progress_bar", "sync_batchnorm"), switch),
    **dict.fromkeys(("max_epochs", "min_epochs", "log_every_n_steps", "num_nodes",
                     "accumulate_grad_batches", "check_val_every_n_epoch"), count),
    **dict.fromkeys(("num_sanity_val_steps", "max_steps"), lambda v: whole(v, least=-1)),
    **dict.fromkeys(("min_steps", "reload_dataloaders_every_n_epochs"), whole),
    **dict.fromkeys(("limit_train_batches", "limit_val_batches", "limit_test_batches",
                     "limit_predict_batches", "overfit_batches", "gradient_clip_val"),
                    takes.not_negative),
    **dict.fromkeys(("callbacks", "plugins"), takes.built),
    "gradient_clip_algorithm": takes.choice("norm", "value"), "fast_dev_run": takes.trial,
    "profiler": takes.choice("simple", "advanced", "pytorch"), "model_registry": text,
    "val_check_interval": takes.positive,
    "max_time": takes.pattern(r"\d+:\d+:\d+:\d+", "00:12:00:00"),
    "strategy": takes.pattern("auto|ddp.*|fsdp|deepspeed.*", "ddp"),
}
_LOADER: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("shuffle", "drop_last", "pin_memory", "batch_is_global"), switch),
    **dict.fromkeys(("min_seconds", "max_seconds", "batch_seconds"), takes.positive),
    **dict.fromkeys(("buffer_shards", "max_errors"), whole),
    "on_error": takes.choice("raise", "skip"), "sampler": takes.built,
}
_PARALLEL: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("item_timeout", "worker_timeout", "start_timeout"), takes.positive),
    **dict.fromkeys(("max_lost_jobs", "max_successors", "retries"), whole),
    "shards_per_worker": count, "mode": takes.choice("sync", "async"), "adaptive": takes.mapping,
    "options": takes.mapping,
}
_RUNNER: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("resume", "retry_failed"), switch), "max_errors": whole,
    "on_error": takes.choice("raise", "skip"), "accept_changes": takes.names,
}

for _name in TRAINER_ARGUMENTS:
    _train(_name, to(f"trainer.{_name}", _ARGUMENTS.get(_name, takes.keep)))
for _name in PARALLEL_KEYS:
    _add(_name, Place(WORKERS, to(f"parallel.{_name}", _PARALLEL.get(_name, takes.keep))))
for _name in LOADER_KEYS:
    _train(_name, to(f"dataloader.train.{_name}", _LOADER.get(_name, takes.keep)))
for _name in RUNNER_KEYS:
    _add(_name, Place(INFER, to(f"runner.{_name}", _RUNNER[_name])),
         Place(STATISTICS, to(f"collect_stats.{_name}", _RUNNER[_name])))
for _name in ("on_error", "max_errors"):
    WORDS[_name] += (Place(TRAIN, to(f"dataloader.train.{_name}", _RUNNER[_name])),)
_OF_TRAINING = "That of a training stands at the top."
WORDS["resume"] += (Place(TRAIN, to("resume", ways.resuming), _OF_TRAINING),)
WORDS["accept_changes"] += (Place(TRAIN, to("accept_changes", takes.names), _OF_TRAINING),)
_train("collate_fn", to("dataloader.collate_fn", takes.function))
_train("batch_sampler", tell("It makes the batches in place of every size: dataloader: {train: "
                             "{batch_sampler: {_target_: ...}}}"))
_train("shape_file", tell("It needs batch_bins or sample_rate beside it: dataloader: {train: "
                          "{shape_file: '${stats_dir}/train/speech_shape', batch_bins: 4000000}}"))
_train("max_padding", to("dataloader.train.max_padding", takes.share))
_train("prefetch_factor dataloader_prefetch_factor", ways.with_workers("prefetch_factor", count))
_train("persistent_workers dataloader_persistent_workers",
       ways.with_workers("persistent_workers", switch))
_train("timeout", ways.with_workers("timeout", takes.not_negative))
_train("worker_init_fn", ways.with_workers("worker_init_fn", takes.function))
_train("multiprocessing_context dataloader_multiprocessing_context",
       ways.with_workers("multiprocessing_context", takes.choice("fork", "spawn", "forkserver")))
_train("dataloader_drop_last", to("dataloader.train.drop_last", switch))
_train("dataloader_pin_memory", to("dataloader.train.pin_memory", switch))
_train("max_seconds max_duration max_wav_duration avoid_if_longer_than",
       to("dataloader.train.max_seconds", takes.positive))
_train("min_seconds min_duration min_wav_duration avoid_if_shorter_than",
       to("dataloader.train.min_seconds", takes.not_negative))
_train("batch_seconds max_batch_length batch_duration",
       to("dataloader.train.batch_seconds", takes.positive))
_train("every_minutes ckpt_interval_minutes", to("checkpoint.every_minutes", takes.positive))
_train("every_n_steps save_steps every_n_train_steps save_interval save_every_n_steps",
       to("checkpoint.every_n_steps", count))
_train("use_distributed_sampler replace_sampler_ddp",
       tell("Our loaders spread the samples over the ranks themselves: delete the line."))
_train("barebones", tell("It would leave out logging and checkpoints: delete the line."))
_train("enable_checkpointing checkpoint_callback",
       tell("Checkpoints are always written; the block checkpoint says how often."))

# Where it runs: the two layers

_add("devices num_device num_devices n_devices nproc_per_node num_processes", *ways.DEVICES)
_add("gpus ngpu n_gpu n_gpus num_gpus num_gpu n_gpus_per_node gpus_per_node", *ways.GPUS)
_add("n_workers nj n_jobs num_jobs workers n_worker num_worker max_workers n_procs num_procs "
     "n_processes max_jobs_run max_jobs", *ways.N_WORKERS)
_add("inference_nj decode_nj nj_inference", ways.N_WORKERS[0])
_add("num_workers dataloader_num_workers n_loader_workers", *ways.LOADER_WORKERS)
_add("gpu_inference use_gpu_inference", Place(
    INFER, if_on(to("parallel.env", lambda _: "local_gpu"), to("device", lambda _: "cpu")),
    "Each worker of local_gpu has a GPU of its own."))
_add("env backend cluster cmd cmd_backend train_cmd cuda_cmd decode_cmd executor",
     Place(WORKERS, ways.env_of_workers, "parallel.env says where workers run."),
     Place(TRAIN, ways.env_of_training, ways.TWO_LAYERS))
_add("num_nodes nnodes n_nodes num_machines nodes",
     Place(TRAIN, to("trainer.num_nodes", count), ways.TWO_LAYERS),
     Place(WORKERS, tell("Workers are jobs, on as many nodes as the cluster likes: "
                         "parallel: {env: slurm, n_workers: {value}}")))
for _name, _way in (("accelerator", ways.accelerator), ("device", ways.device)):
    _add(_name, Place(TRAIN, _way, ways.TWO_LAYERS),
         Place(INFER, ways.worker_device, "The device of a worker's model stands at the top."))
_add("device_index gpu_id gpu_index",
     Place(INFER, to("device", lambda value: f"cuda:{whole(value)}"),
           "Left out, each worker takes a GPU of its own."),
     Place(TRAIN, to("trainer.devices", lambda value: [whole(value)],
                     {"trainer.accelerator": "gpu"})))
_add("no_cuda use_cpu",
     Place(TRAIN, if_on(to("trainer.accelerator", lambda _: "cpu"),
                        to("trainer.accelerator", lambda _: "auto"))),
     Place(INFER, if_on(to("device", lambda _: "cpu"),
                        tell("A GPU is taken where there is one: delete the line."))))
_add("use_cuda use_gpu cuda gpu",
     Place(TRAIN, if_on(to("trainer.accelerator", lambda _: "gpu"),
                        to("trainer.accelerator", lambda _: "cpu"))),
     Place(INFER, if_on(to("parallel.env", lambda _: "local_gpu"),
                        to("device", lambda _: "cpu"))))
for _name in (
    "queue",
    "partition",
    "walltime",
    "memory",
    "cores",
    "processes",
    "account",
    "project",
):
    _ours = "queue" if _name == "partition" else _name
    _add(_name, Place(WORKERS, ways.of_jobs(_ours)), Place(TRAIN, tell(
        "A training as a job takes it from a launch block: espnet3 launch conf/training.yaml "
        "conf/launch_slurm.yaml")))
_train("distributed_backend dist_strategy", to("trainer.strategy", _ARGUMENTS["strategy"]))
_train("sync_bn sync_batchnorm", to("trainer.sync_batchnorm", switch))
_train("unused_parameters ddp_find_unused_parameters find_unused_parameters", if_on(
    to("trainer.strategy", lambda _: "ddp_find_unused_parameters_true"),
    tell("It is the default: delete the line.")))
_train("fsdp sharded_ddp use_fsdp", tell("Sharding is a strategy: trainer.strategy=fsdp"))
_train("deepspeed use_deepspeed", tell("It is a strategy: trainer.strategy=deepspeed_stage_2"))
_say("multiprocessing_distributed dist_backend dist_init_method dist_launcher dist_master_addr "
     "dist_master_port dist_rank dist_world_size local_rank node_rank master_addr master_port "
     "world_size rank ddp_backend ddp_timeout ddp_bucket_cap_mb ddp_broadcast_buffers "
     "ddp_static_graph distributed accelerator_config parallelism_config",
     "Processes find each other by themselves; trainer.devices and trainer.num_nodes say how "
     "many there are: delete the line.")

# How long, how large, how fast

_train("epochs epoch n_epochs num_epochs max_epoch nb_epochs num_train_epochs number_of_epochs",
       to("trainer.max_epochs", count))
_train("steps num_steps n_steps max_iters max_iter num_iterations total_steps train_steps",
       to("trainer.max_steps", count))
_train("num_iters_per_epoch steps_per_epoch iters_per_epoch train_percent_check",
       to("trainer.limit_train_batches", count))
_add("batch_size train_batch_size per_device_train_batch_size per_gpu_train_batch_size batchsize",
     *ways.BATCH_SIZE)
_add("valid_batch_size val_batch_size eval_batch_size per_device_eval_batch_size "
     "per_gpu_eval_batch_size dev_batch_size",
     Place(TRAIN, to("dataloader.valid.batch_size", count), "It is the batch of one process."),
     ways.BATCH_SIZE[1])
_add("test_batch_size inference_batch_size decode_batch_size", ways.BATCH_SIZE[1])
_train("batch_bins", ways.batch_bins, "Batches go by seconds of audio: bins / 16000 at 16 kHz.")
_train(
    "valid_batch_bins", tell("Batches go by seconds of audio: dataloader.valid.batch_seconds=60")
)
_train("batch_type valid_batch_type", ways.batch_type)
_train("gradient_accumulation_steps accum_grad accum_grad_steps grad_accum gradient_accumulation "
       "grad_accumulation_factor accumulate_grad", to("trainer.accumulate_grad_batches", count))
_train("grad_clip max_grad_norm gradient_clip grad_clip_norm clip_grad_norm gradient_clipping "
       "clip_grad grad_norm", to("trainer.gradient_clip_val", takes.not_negative))
_train("grad_clip_type", tell("trainer.gradient_clip_algorithm is norm, the default, or value."))
_train("lr learning_rate base_lr init_lr initial_lr", ways.of_optimizer("lr"),
       "It is an argument of the optimizer.")
_train("max_lr", ways.of_scheduler("max_lr", "scheduler.max_lr", takes.positive))
_train("weight_decay wd l2", ways.of_optimizer("weight_decay"),
       "It is an argument of the optimizer.")
_train("momentum", ways.of_optimizer("momentum", is_usual=False))
_train("betas", ways.of_optimizer("betas", is_usual=False))
_train(
    "adam_beta1 adam_beta2", tell("It is an argument of the optimizer: optimizer.betas=[0.9,0.999]")
)
_train("eps adam_epsilon", ways.of_optimizer("eps", is_usual=False))
_train("optim optimizer_name optim_args optim_conf opt optim_target_modules", tell(
    "The optimizer is a class with its arguments: optimizer: {_target_: torch.optim.AdamW, "
    "lr: 0.001}"))
_train("warmup_steps warmup num_warmup_steps n_warmup_steps", ways.warmup,
       "It is an argument of the scheduler.")
_train("warmup_ratio lr_scheduler lr_scheduler_type lr_scheduler_kwargs scheduler_conf "
       "lr_annealing sched lr_decay", tell(
    "The scheduler is a class with its arguments: scheduler: {_target_: "
    "torch.optim.lr_scheduler.OneCycleLR, max_lr: 0.001}"))
_train("val_scheduler_criterion", tell(
    "Only ReduceLROnPlateau looks at a metric: scheduler: {_target_: "
    "torch.optim.lr_scheduler.ReduceLROnPlateau} with scheduler_monitor: valid/loss"))
_train("early_stopping early_stop early_stopping_patience early_stopping_criterion patience "
       "early_stopping_config early_stopping_callback", ways.early_stopping,
       "It is a callback of Lightning.")
_train("fp16 use_amp amp half auto_mix_prec mixed_precision fp16_full_eval", if_on(
    to("trainer.precision", lambda _: "16-mixed"), to("trainer.precision", lambda _: "32-true")))
_train("bf16 bfloat16 bf16_full_eval", if_on(
    to("trainer.precision", lambda _: "bf16-mixed"), to("trainer.precision", lambda _: "32-true")))
_train("precision dtype train_dtype mixed_precision_type torch_dtype", ways.precision)
_train("deterministic full_determinism cudnn_deterministic", to("trainer.deterministic", switch))
_train("cudnn_benchmark", to("trainer.benchmark", switch))
_train("detect_anomaly", to("trainer.detect_anomaly", switch))
_train("gradient_checkpointing activation_checkpointing gradient_checkpointing_kwargs", tell(
    "There is none; what saves memory is trainer.precision=bf16-mixed, or a smaller batch with "
    "trainer.accumulate_grad_batches=2"))
_train("auto_find_batch_size auto_scale_batch_size", tell(
    "Batches by dataloader.train.batch_seconds all take about the same memory."))
_train("group_by_length sorting sort_batch sort_in_batch length_column_name "
       "train_sampling_strategy", tell(
    "Batches by dataloader.train.batch_seconds have samples of about one length."))
_train("label_smoothing_factor label_smoothing lsm_weight", tell(
    "The loss is part of the model, so it is an argument of model, if its class has one."))

# What is kept, logged and resumed

_train("keep_nbest_models save_total_limit save_top_k keep_nbest nbest_averaging_interval "
       "num_to_keep keep_checkpoint_max", ways.kept_checkpoints,
       "It is metric, number and min or max; the best ones are averaged.")
_train("metric_for_best_model monitor", ways.best_by, "It is metric, number and min or max.")
_train("greater_is_better", tell("It is the third of: best_model_criterion=[[valid/acc,3,max]]"))
_train("load_best_model_at_end", tell(
    "The stage average writes the average of the best checkpoints, and infer uses it."))
_train("eval_steps val_interval valid_interval eval_every val_every_n_steps",
       ways.batches_between, "It counts batches.")
_train("check_val_every_n_epoch eval_every_n_epochs val_every_n_epochs",
       to("trainer.check_val_every_n_epoch", count))
_train("eval_strategy evaluation_strategy", ways.evaluation)
_train("eval_on_start", tell("trainer.num_sanity_val_steps=-1 validates before the first step."))
_train("logging_steps log_interval log_every log_every_steps print_freq log_freq",
       to("trainer.log_every_n_steps", count))
_train("save_strategy save_freq", tell(
    "last.ckpt is written after each epoch and each minute; see the block checkpoint."))
_train("report_to logger loggers", ways.logger)
_train("use_tensorboard tensorboard", if_on(
    tell("TensorBoard is on by default, in exp_dir/tensorboard: delete the line."),
    to("trainer.logger", lambda _: False)))
_train("use_wandb wandb wandb_project wandb_name wandb_entity wandb_id project_name", tell(
    "trainer: {logger: [{_target_: lightning.pytorch.loggers.WandbLogger, save_dir: "
    "'${exp_dir}'}]}"))
_train("disable_tqdm", to("trainer.enable_progress_bar", lambda value: not switch(value)))
_train("progress_bar_refresh_rate", tell("trainer.enable_progress_bar=false hides the bar."))
_train("resume_from_checkpoint ckpt_path checkpoint_path", ways.resumed)
_train("init_param pretrained_model pretrained_path init_from pretrain_path load_from",
       to("init", takes.existing), "It starts from these weights.")
_train("freeze_param freeze_params frozen freeze_layers freeze_modules", to("freeze", takes.names))
_train("num_att_plot ignore_init_mismatch no_forward_run log_level write_collected_feats "
       "use_matplotlib train_dtype_ cudnn_enabled", tell("It has no counterpart: delete the line."))
_add("seed data_seed random_seed", Place(("train", "create_dataset"), to("seed", whole)))
_train("num_threads", to("num_threads", count))
_add("output_dir save_dir output_folder out_dir experiment_dir expdir asr_exp exp_path work_dir "
     "default_root_dir ckpt_dir checkpoint_dir save_folder",
     Place(TRAIN, to("exp_dir", text)), Place(INFER, to("inference_dir", text)),
     Place(PACK, to("pack.output_dir", text)), Place(ALL, to("exp_dir", text)))
_add("decode_dir inference_expdir", Place((*INFER, *SCORE), to("inference_dir", text)))
_add("asr_stats_dir statsdir", Place((*STATISTICS, *TRAIN), to("stats_dir", text)))
_add("dumpdir datadir data_folder data_path dump_dir",
     Place(("create_dataset", "train_tokenizer"), to("data_dir", text)))
_say("launch", "It is read by: espnet3 launch conf/training.yaml conf/launch_slurm.yaml")
_add(
    "asr_tag tag exp_name experiment_name run_name experiment expname",
    Place(ALL, to("exp_tag", text)),
)
_say("logging_dir log_dir logdir", "Each stage logs into exp_dir/STAGE.log: delete the line.")

# The options of ESPnet2's shell recipes

for _name in ("asr_config", "train_config", "enh_config", "tts_config", "lm_config", "st_config"):
    _add(_name, Place(ALL, ways.option("training_config")))
for _name in ("inference_config", "decode_config", "training_config", "metrics_config",
              "publication_config", "demo_config", "config"):
    _ours = "inference_config" if _name == "decode_config" else _name
    _add(_name, Place(ALL, ways.option(_ours)))
_say("asr_args inference_args lm_args train_args extra_args",
     "Each setting is a word of its own on the command line, such as optimizer.lr=0.001")
_say("stage stages start_stage", "It is an option: --stage {value}")
_say("stop_stage", "It is an option: --stop_stage {value}")
_say("dry_run", "It is an option: --dry-run")
_say("detach", "It is an option: --detach")
_say("skip_data_prep skip_train skip_eval skip_upload skip_packing skip_stages skip_upload_hf "
     "do_train do_eval do_predict eval_valid_set download_model",
     "Name the stages to run: --stages train infer measure")
_say("stage_log_mode", "Each stage logs into exp_dir/STAGE.log: delete the line.")
_say("task", "The model says what is trained: model: {_target_: ...}. Delete the line.")
_add("pack_model", *ways.PACKING)
_add(
    "upload_model", Place(UPLOAD, tell("The block is called upload: upload: {repo_id: user/name}"))
)
_add("hub_model_id hf_repo repo_id", Place(UPLOAD, to(
    "upload.repo_id", takes.pattern(r"[\w.-]+/[\w.-]+", "user/name"))))
_add("hub_private_repo", Place(UPLOAD, to("upload.private", switch)))
_add("hub_revision", Place(UPLOAD, to("upload.revision", text)))
_say("push_to_hub hub_strategy hub_always_push", "It is a stage: --stages pack_model upload_model")
_say(
    "hub_token hf_token", "The token comes from the environment, as HF_TOKEN, never from a config."
)
_say("train_set valid_set valid_sets dev_set", "The data sets are lists in the training config: "
     "dataset: {train: [{data_src: kaldi, data_src_args: {path: data/train}}], valid: [...]}")
_say("test_sets test_set_names", "They are listed under dataset.test of the inference config; "
     "test_set=NAME decodes one of them.")
_say("local_data_opts data_opts", "What dataset/builder.py takes is written under create_dataset.")
_say("local_score_opts score_opts", "Metrics and their arguments are listed under metrics.")
_say("speed_perturb_factors speed_perturb data_aug data_aug_effects noise_scp rir_scp", "It is a "
     "transform of a dataset: transform: {_target_: "
     "espnet3.components.data.augmentation.SpeedPerturb, factors: [0.9, 1.0, 1.1]}")
_say("feats_normalize normalize normalize_conf", "It is a part of the model: model: {normalize: "
     "{_target_: espnet3.components.models.normalization.UtteranceNormalization}}")
_say("feats_type frontend frontend_conf n_fft hop_length n_shift n_mels", "It is a part of the "
     "model: model: {frontend: {_target_: espnet3.components.models.log_mel.LogMel, "
     "sample_rate: 16000}}")
_say("specaug specaug_conf spec_augment", "It is a part of the model: model: {spec_augment: "
     "{_target_: espnet3.components.models.spec_augment.SpecAugment}}")
_say("encoder encoder_conf decoder decoder_conf model_conf preencoder preencoder_conf postencoder "
     "postencoder_conf ctc_conf joint_network joint_net_conf frontend_args",
     "It is a part of the model: model: {_target_: ..., encoder: {_target_: ...}}")
_say("fs sampling_rate sample_rate", "The rate is that of the data and of the frontend: "
     "sample_rate: 16000 under data_src_args, and under model.frontend.")
_say("audio_format", "Audio is read as it is (wav, flac, ogg, mp3): delete the line.")
_say("lang language", "It goes into the model card: pack: {language: en}")
_say("python cmd_opts path", "The Python that runs run.py is used: delete the line.")
_say("fold_length asr_speech_fold_length asr_text_fold_length lm_fold_length num_splits_asr "
     "num_splits_lm num_splits chunk_length iterator_type collect_stats_nj",
     "It has no counterpart: dataloader.train says how batches are made.")
_say("train_data_path_and_name_and_type valid_data_path_and_name_and_type "
     "data_path_and_name_and_type train_shape_file valid_shape_file", "The data sets are lists: "
     "dataset: {train: [{data_src: kaldi, data_src_args: {path: data/train}}]}")
_say("train_ds validation_ds test_ds manifest_filepath train_manifest exp_manager",
     "The data sets are lists under dataset: train, valid and test.")
_say("use_lm use_word_lm use_ngram lm_exp lm_tag lm_stats_dir inference_lm inference_ngram "
     "ngram_num word_vocab_size", "A language model is an argument of the decoder, and none is "
     "used otherwise: model: {decoder: {_target_: "
     "espnet3.components.decoding.joint_beam.JointBeam, lm: FILE}}")
_say("inference_asr_model inference_model asr_model_file inference_tag", "The weights are an "
     "argument of the model: model.weights='${exp_dir}/valid.loss.ave_3best.safetensors'")

_tokens = Place(TOKENS, ways.vocabulary, "With tokens of SentencePiece.")
_add("nbpe vocab_size n_vocab num_tokens", _tokens)
_add("token_type bpemode bpe_mode model_type", Place(TOKENS, ways.token_type))
_add("bpe_char_cover character_coverage", Place(TOKENS, to("tokenizer.character_coverage",
                                                           takes.positive)))
_say("bpe_train_text lm_train_text lm_dev_text lm_test_text srctexts",
     "Texts for the tokenizer are those of dataset.train, or what tokenizer: {text_builder: {func: "
     "FUNCTION}} gives.")
_say("nlsyms_txt bpe_nlsyms cleaner g2p non_linguistic_symbols", "What is done to texts is listed "
     "in tokenizer: {clean_types: [...]}")
_say("token_list bpemodel bpe_model", "The tokens are those of the folder tokenizer.save_path.")

for _word, _ours, _convert in (
    ("beam_size", "", count), ("beam", "beam_size", count), ("ctc_weight", "", takes.number),
    ("lm_weight", "", takes.number), ("ngram_weight", "", takes.number),
    ("nbest", "n_best", count), ("n_best", "", count), ("penalty", "length_bonus", takes.number),
    ("maxlenratio", "max_length_ratio", ways.length_ratio),
):
    _add(_word, Place(INFER, ways.decoder(_word, _ours, _convert)))
_say("minlenratio", "It has no counterpart: delete the line.")

# Of other trainers, without a counterpart

_say("average_tokens_across_devices tf32 torch_compile torch_compile_backend torch_compile_mode "
     "use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps "
     "logging_strategy logging_first_step log_on_each_node logging_nan_inf_filter "
     "include_num_input_tokens_seen log_level_replica project trackio_space_id trackio_bucket_id "
     "trackio_static_space_id eval_delay prediction_loss_only eval_do_concat_batches "
     "eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics "
     "save_only_model save_on_each_node enable_jit_checkpoint ignore_data_skip "
     "restore_callback_states_from_checkpoint dataloader_in_order remove_unused_columns "
     "label_names fsdp_config debug skip_memory_metrics generator in_order pin_memory_device "
     "auto_lr_find auto_select_gpus amp_backend amp_level weights_summary weights_save_path "
     "flush_logs_every_n_steps track_grad_norm terminate_on_nan move_metrics_to_cpu "
     "multiple_trainloader_mode stochastic_weight_avg truncated_bptt_steps process_position",
     "It has no counterpart here: delete the line.")

_in("", "trainer", Place(WORKERS, ways.trainer_for_workers, ways.TWO_LAYERS))
_in("", "parallel", Place(TRAIN, ways.workers_for_trainer, ways.TWO_LAYERS))
_in("", "dataloader", Place(INFER, ways.loader_for_inference, "Batches of infer stand at the top."))
_in("parallel", "num_workers workers num_jobs jobs processes", *ways.N_WORKERS)
_in("parallel", "type name scheduler cluster backend", *WORDS["env"])
_in("parallel", "timeout", Place(WORKERS, to("parallel.item_timeout", takes.positive)))
for _block in ("dataloader", "dataloader.train", "dataloader.valid"):
    _in(_block, "n_workers workers nj n_jobs",
        Place(TRAIN, to("dataloader.train.num_workers", whole)))
_TIME = takes.pattern(r"(\d+-)?\d+:\d\d:\d\d", '"24:00:00"')
_renamed("parallel.options", WORKERS, {
    "partition": ("queue", text), "time time_limit timelimit": ("walltime", _TIME),
    "mem memory_limit": ("memory", text),
    "cpus cpus_per_task ncpus n_cpus ppn threads nthreads": ("cores", count),
})
_in("parallel.options", "gpus gres ngpus gpu", Place(WORKERS, tell(
    'GPUs are asked for with the words of the scheduler: job_extra_directives: ["--gres=gpu:1"]')))
_in("parallel.options", "nodes n_workers jobs", Place(WORKERS, tell(
    "Each worker is a job on one node; n_workers, outside of options, says how many.")))
_BY_CLASS = "name type class class_name"
_in("optimizer", _BY_CLASS, Place(TRAIN, tell(
    "The class goes by its path: _target_: torch.optim.AdamW")))
_in("scheduler", _BY_CLASS, Place(TRAIN, tell(
    "The class goes by its path: _target_: espnet3.components.schedulers.WarmupLR")))
_in("scheduler", "interval", Place(TRAIN, ways.of_scheduler(
    "interval", "scheduler_interval", takes.choice("step", "epoch"))))
_in("scheduler", "monitor", *WORDS["val_scheduler_criterion"])
_in("tokenizer", "type kind", Place(TOKENS, ways.token_type))
_in("tokenizer", "size nbpe n_tokens", _tokens)
_renamed("tokenizer", TOKENS, {"path dir folder save_dir output_dir": ("save_path", text)})
_in("checkpoint", "every_n_epochs save_last dirpath filename save_on_train_epoch_end", Place(
    TRAIN, tell("last.ckpt is written into exp_dir after each epoch: delete the line.")))
_in("upload", "repo repository name model_id hub_id", *WORDS["repo_id"])
_in("upload", "token", *WORDS["hub_token"])
_renamed("launch", TRAIN, {
    "env cluster backend": ("scheduler", takes.choice("slurm", "pbs", "sge", "lsf")),
    "walltime time_limit": ("time", _TIME), "project": ("account", text),
    "mem memory_per_node": ("memory", takes.pattern(r"\d+[KMGT]B?", "64G")),
    "cores cpus n_cpus cpus_per_node": ("cpus_per_task", count),
    "job_extra_directives extra options": ("directives", takes.lines),
    "job_script_prologue prologue": ("setup", takes.lines),
})
for _block in ("dataset.train", "dataset.valid", "dataset.test"):
    _in(_block, "path split sample_rate channel resample root manifest", Place(ALL, tell(
        "What the data set takes stands below data_src_args, such as: data_src_args: "
        "{path: data/train}")))
    _in(_block, "src source dataset _target_", Place(ALL, tell(
        "Where it comes from is data_src: data_src: {value}")))
    _in(_block, "args kwargs params", Place(ALL, tell("They are called data_src_args.")))
# fmt: on
