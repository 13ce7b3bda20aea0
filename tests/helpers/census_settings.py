"""Settings of made-up ESPnet2 recipes (asr1), as often as the public ones have them."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

N_RECIPES = 142
"""As many as there are in the public `egs2/*/asr1`."""


@dataclass
class Settings:
    """A recipe before it is written: what it means, apart from how its shell spells it."""

    number: int
    options: dict[str, str]
    """Of the call of asr.sh, as the shell hands them over."""
    train: dict[str, Any]
    """The training config after `--asr_args`."""
    decode: dict[str, Any]
    """The decoding config after `--inference_args`."""
    lm: dict[str, Any]
    backend: str = "local"
    has: set[str] = field(default_factory=set)
    """Of data, dump, tokens, exp, lm: what running the old recipe has left."""
    unknown: set[str] = field(default_factory=set)
    """Options whose value only a shell could tell."""
    commands: list[str] = field(default_factory=list)
    """Further commands of run.sh, outside of any condition."""

    def get(self, name: str, default: str = "") -> str:
        """Return an option, or the default of asr.sh."""
        return self.options.get(name, default)

    @property
    def uses_lm(self) -> bool:
        return self.get("use_lm", "true") == "true" and self.decode.get("lm_weight", 1.0) != 0


def make_settings(number: int) -> Settings:
    """Return the settings of one recipe; the same number gives the same ones."""
    rng = random.Random(7919 * number + 17)
    settings = Settings(number, {}, _train(rng), _decode(rng), _language_model(rng))
    settings.options = _options(rng, settings)
    settings.backend = rng.choices(["local", "slurm", "sge", "pbs", "ssh"], [80, 9, 5, 4, 2])[0]
    has = rng.choices([{"data", "tokens"}, {"dump", "tokens"}, {"data"}, set()], [60, 15, 12, 13])
    settings.has = set(has[0])
    if settings.has and rng.random() < 0.15:
        settings.has |= {"exp", "lm"}
    if rng.random() < 0.04:
        settings.commands.append("local/prepare_extra.py --text data/train/text")
    return settings


def _often(rng: random.Random, of_142: int) -> bool:
    return rng.random() < of_142 / N_RECIPES


def _options(rng: random.Random, settings: Settings) -> dict[str, str]:
    lang = rng.choice(["en", "zh", "jp", "de", "fr", "multi"])
    train = rng.choice([f"train_{lang}", "train", "train_nodev", "tr05_multi_noisy", "train-clean"])
    tests = {1: ["test"], 2: ["dev", "test"], 3: ["dev_clean", "test_clean", "test/other", "test"]}
    picked = tests[rng.choices([1, 2, 3], [41, 73, 27])[0]]
    options = {
        "train_set": train,
        "valid_set": rng.choice(["dev", "valid", "train_dev", "dt05_multi"]),
        "test_sets": " ".join(picked),
        "asr_config": "conf/train_asr.yaml",
    }
    kind = rng.choices(["bpe", "char", "word", "hugging_face", ""], [53, 31, 26, 5, 27])[0]
    if kind:
        options["token_type"] = kind
    if kind == "hugging_face":
        options["hugging_face_model_name_or_path"] = "bert-base-uncased"
    values = _values(rng, lang, train, options["valid_set"])
    for name, (of_142, value) in values.items():
        if _often(rng, of_142) or (name == "nbpe" and kind in ("bpe", "")):
            options[name] = value
    if "inference_config" not in options:
        settings.decode = {}
    kept = settings.train.get("best_model_criterion", [["valid", "acc"]])
    if kept == [["valid", "cer_ctc", "min"]]:  # what is not kept, ESPnet2 cannot decode either
        options["inference_asr_model"] = "valid.cer_ctc.ave.pth"
    if options.get("use_lm") == "false":
        options.pop("use_word_lm", None)
    shuffled = list(options.items())
    rng.shuffle(shuffled)
    return dict(shuffled)


def _values(rng: random.Random, lang: str, train: str, valid: str) -> dict[str, tuple[int, str]]:
    """Return how often an option is set, of 142 recipes, and a value of it."""
    pick = rng.choices
    return {
        "use_lm": (122, pick(["false", "true"], [78, 25])[0]),
        "inference_config": (117, "conf/decode_asr.yaml"),
        "lang": (112, lang),
        "ngpu": (111, pick(["1", "4", "2", "8", "0"], [63, 23, 11, 4, 5])[0]),
        "feats_type": (107, pick(["raw", "raw_copy", "fbank_pitch"], [101, 3, 3])[0]),
        "lm_train_text": (103, f"data/{train}/text"),
        "nbpe": (88, rng.choice(["30", "500", "1000", "5000", "150"])),
        "speed_perturb_factors": (76, pick(["0.9 1.0 1.1", "0.95 1.0 1.05", ""], [67, 5, 3])[0]),
        "audio_format": (71, rng.choice(["flac", "wav", "flac.ark"])),
        "max_wav_duration": (69, rng.choice(["30", "20", "25.5", "40"])),
        "lm_config": (66, "conf/train_lm.yaml"),
        "inference_nj": (63, rng.choice(["8", "32", "50", "1"])),
        "bpe_train_text": (62, f"data/{train}/text"),
        "inference_asr_model": (48, rng.choice(
            ["valid.acc.ave_10best.pth", "valid.acc.ave.pth", "valid.acc.best.pth",
             "valid.loss.best.pth", "valid.cer_ctc.ave_5best.pth", "latest.pth",
             "valid.acc.ave_10best.till30epoch.pth"])),
        "feats_normalize": (46, pick(["utterance_mvn", "utt_mvn", "uttmvn", "global_mvn"],
                                     [33, 7, 3, 3])[0]),
        "nj": (41, rng.choice(["16", "40", "128"])),
        "local_data_opts": (39, rng.choice(["--lang en", "--remove_archive false --stage 0"])),
        "stage": (27, rng.choice(["1", "10", "11"])),
        "gpu_inference": (25, rng.choice(["true", "false"])),
        "nlsyms_txt": (21, rng.choice(["data/nlsyms.txt", "none"])),
        "stop_stage": (19, rng.choice(["13", "100"])),
        "use_word_lm": (16, pick(["false", "true"], [14, 2])[0]),
        "bpe_nlsyms": (14, "<noise>,<laugh>"),
        "local_score_opts": (13, "--score_folds true"),
        "asr_speech_fold_length": (11, "512"),
        "asr_text_fold_length": (11, "150"),
        "lm_fold_length": (11, "150"),
        "min_wav_duration": (7, "0.5"),
        "asr_tag": (7, "mine"),
        "word_vocab_size": (6, "65000"),
        "skip_upload": (5, "true"),
        "bpemode": (5, rng.choice(["bpe", "unigram"])),
        "fs": (5, rng.choice(["8k", "16000", "44100", "24k"])),
        "lm_dev_text": (3, f"data/{valid}/text"),
        "lm_test_text": (3, "data/test/text"),
        "num_nodes": (3, "2"),
        "use_ngram": (2, "false"),
        "expdir": (2, "exp"),
        "dumpdir": (2, "dump"),
        "cleaner": (2, rng.choice(["none", "tacotron"])),
        "eval_valid_set": (2, "true"),
        "num_splits_asr": (2, "8"),
        "oov": (1, "<unk>"),
        "use_streaming": (2, "true"),
        "post_process_local_data_opts": (2, "--stage 2"),
        "ignore_init_mismatch": (2, "true"),
        "pretrained_model": (2, "exp/other/valid.acc.ave.pth"),
    }  # fmt: skip


# --- Configs -----------------------------------------------------------------------------------

_ATTENTION: Mapping[str, Any] = {
    "output_size": 64, "attention_heads": 4, "num_blocks": 2, "dropout_rate": 0.1,
    "positional_dropout_rate": 0.1, "attention_dropout_rate": 0.0, "input_layer": "conv2d",
}  # fmt: skip
_RELATIVE = {"rel_pos_type": "latest", "pos_enc_layer_type": "rel_pos"}
_CONFORMER = {
    **_ATTENTION, **_RELATIVE, "linear_units": 128, "normalize_before": True, "macaron_style": True,
    "selfattention_layer_type": "rel_selfattn", "activation_type": "swish", "use_cnn_module": True,
    "cnn_module_kernel": 15,
}  # fmt: skip
_STREAMING = {
    "block_size": 40, "hop_size": 16, "look_ahead": 16, "init_average": True, "ctx_pos_enc": True,
    "linear_units": 128, "normalize_before": True,
}  # fmt: skip
ENCODERS: Mapping[str, tuple[int, dict[str, Any]]] = {
    "conformer": (150, _CONFORMER),
    "transformer": (121, {**_ATTENTION, "linear_units": 128, "normalize_before": True}),
    "e_branchformer": (57, {
        **_ATTENTION, **_RELATIVE, "attention_layer_type": "rel_selfattn", "linear_units": 128,
        "cgmlp_linear_units": 128, "cgmlp_conv_kernel": 31, "use_linear_after_conv": False,
        "gate_activation": "identity", "layer_drop_rate": 0.1, "positionwise_layer_type": "linear",
        "use_ffn": True, "macaron_ffn": True, "merge_conv_kernel": 31,
    }),
    "vgg_rnn": (30, {
        "rnn_type": "lstm", "bidirectional": True, "use_projection": True, "num_layers": 2,
        "hidden_size": 64, "output_size": 64,
    }),
    "branchformer": (13, {
        **_ATTENTION, **_RELATIVE, "use_attn": True, "attention_layer_type": "rel_selfattn",
        "use_cgmlp": True, "cgmlp_linear_units": 128, "cgmlp_conv_kernel": 31,
        "use_linear_after_conv": False, "gate_activation": "identity", "merge_method": "concat",
        "cgmlp_weight": 0.5, "attn_branch_drop_rate": 0.0, "stochastic_depth_rate": 0.0,
    }),
    "whisper": (9, {"whisper_model": "tiny", "dropout_rate": 0.0, "use_specaug": False}),
    "contextual_block_conformer": (4, {
        **_ATTENTION, **_STREAMING, "macaron_style": True,
        "use_cnn_module": True, "cnn_module_kernel": 15, "activation_type": "swish",
    }),
    "contextual_block_transformer": (4, {**_ATTENTION, **_STREAMING}),
    "rnn": (8, {"rnn_type": "lstm", "num_layers": 2, "hidden_size": 64, "output_size": 64,
                "dropout": 0.1, "subsample": [1, 2]}),
    "": (5, {}),
}  # fmt: skip
"""How often an encoder is met in 401 configs, and its options."""
_SPECAUG = {
    "apply_time_warp": True, "time_warp_window": 5, "time_warp_mode": "bicubic",
    "apply_freq_mask": True, "freq_mask_width_range": [0, 30], "num_freq_mask": 2,
    "apply_time_mask": True, "num_time_mask": 2,
}  # fmt: skip


def _train(rng: random.Random) -> dict[str, Any]:
    names = list(ENCODERS)
    encoder = rng.choices(names, [ENCODERS[name][0] for name in names])[0]
    # An empty config: ESPnet2's own encoder and decoder.
    config: dict[str, Any] = {"encoder": encoder, "encoder_conf": dict(ENCODERS[encoder][1])}
    if not encoder:
        config = {}
    config |= _front(rng, encoder) | _decoder(rng, encoder) | _loop(rng)
    if rng.random() < 284 / 401:
        width = {"time_mask_width_range": [0, 40]}
        ratio = {"time_mask_width_ratio_range": [0.0, 0.05]}
        config["specaug"] = "specaug"
        config["specaug_conf"] = _SPECAUG | rng.choice([width, ratio])
    if rng.random() < 105 / 401:
        config["init"] = rng.choice(["xavier_uniform", "xavier_uniform", "none", "chainer"])
    items = list(config.items())
    rng.shuffle(items)
    return dict(items)


def _front(rng: random.Random, encoder: str) -> dict[str, Any]:
    if encoder == "whisper":
        return {"frontend": None, "input_size": 1}
    if rng.random() < 93 / 401 and encoder not in ("vgg_rnn", "rnn", ""):
        return {
            "frontend": "s3prl",
            "frontend_conf": {"frontend_conf": {"upstream": "wavlm_large"},
                              "download_dir": "./hub", "multilayer_feature": True},
            "preencoder": "linear", "preencoder_conf": {"input_size": 1024, "output_size": 80},
            "freeze_param": ["frontend.upstream"],
        }  # fmt: skip
    return rng.choice([
        {}, {"frontend_conf": {"n_fft": 512, "win_length": 400, "hop_length": 160}},
        {"frontend": "default", "frontend_conf": {"n_fft": 512, "hop_length": 256, "n_mels": 80}},
    ])  # fmt: skip


def _decoder(rng: random.Random, encoder: str) -> dict[str, Any]:
    if not encoder:
        return {}
    names = ["transformer", "rnn", "transducer", "none"]
    kind = "rnn" if encoder in ("vgg_rnn", "rnn") else rng.choices(names, [316, 5, 9, 8])[0]
    weight = rng.choice([0.3, 0.3, 0.3, 0.5])
    if kind == "none":
        return {"model_conf": {"ctc_weight": 1.0}}
    block: dict[str, Any] = {"decoder": kind, "model_conf": {"ctc_weight": weight}}
    if kind == "transformer":
        block["decoder_conf"] = {
            "attention_heads": 4, "linear_units": 128, "num_blocks": 2, "dropout_rate": 0.1,
            "positional_dropout_rate": 0.1, "self_attention_dropout_rate": 0.0,
            "src_attention_dropout_rate": 0.0,
        }  # fmt: skip
        block["model_conf"] |= {"lsm_weight": 0.1, "length_normalized_loss": False}
    elif kind == "rnn":
        att = {"atype": "location", "adim": 64, "aconv_chans": 10, "aconv_filts": 100}
        block["decoder_conf"] = {"num_layers": 1, "hidden_size": 64, "att_conf": att}
    else:
        block["decoder_conf"] = {"rnn_type": "lstm", "num_layers": 1, "hidden_size": 64}
        block["joint_net_conf"] = {"joint_space_size": 64}
    if rng.random() < 0.3:
        block["model_conf"] |= {"extract_feats_in_collect_stats": False}
    return block


def _loop(rng: random.Random) -> dict[str, Any]:
    kind = rng.choices(["numel", "folded", "sorted", "length", "unsorted", ""],
                       [225, 102, 9, 7, 3, 55])[0]  # fmt: skip
    loop: dict[str, Any] = {"max_epoch": rng.choice([20, 35, 50, 60, 100])}
    if kind:
        loop["batch_type"] = kind
    if kind in ("numel", "length"):
        loop["batch_bins"] = rng.choice([4000000, 16000000, 140000000, 2500000])
    else:
        loop["batch_size"] = rng.choice([16, 32, 64, 20])
    name = rng.choices(["adam", "adadelta", "adamw", ""], [335, 33, 27, 6])[0]
    rate = rng.choice([0.002, 0.001, 0.0005, 1.0, "1e-3", "2.5e-4"])
    if name:
        loop |= {"optim": name, "optim_conf": {"lr": rate}}
        if name != "adadelta" and rng.random() < 0.4:
            loop["optim_conf"]["weight_decay"] = 0.000001
    loop |= _schedule(rng)
    optional: Mapping[str, tuple[int, Any]] = {
        "accum_grad": (188, rng.choice([2, 4, 8])), "use_amp": (113, True),
        "patience": (270, rng.choice([3, 10, None, "none"])), "unused_parameters": (68, True),
        "num_iters_per_epoch": (17, 500), "seed": (80, 2022), "num_workers": (150, 4),
        "log_interval": (60, 400), "keep_nbest_models": (300, rng.choice([10, 5, [5, 10]])),
        "grad_clip": (150, rng.choice([5, 5.0, 3.0, -1])), "grad_noise": (20, False),
        "num_att_plot": (60, 0), "cudnn_deterministic": (20, False), "sort_in_batch": (20,
        "descending"), "val_scheduler_criterion": (150, ["valid", "loss"]),
        "best_model_criterion": (330, rng.choice([[["valid", "acc", "max"]],
        [["valid", "acc", "max"], ["valid", "loss", "min"]], [["valid", "cer_ctc", "min"]],
        [["train", "loss", "min"], ["valid", "acc", "max"]]])),
        "early_stopping_criterion": (60, ["valid", "loss", "min"]),
    }  # fmt: skip
    return loop | {k: v for k, (often, v) in optional.items() if rng.random() < often / 401}


def _schedule(rng: random.Random) -> dict[str, Any]:
    name = rng.choices(["warmuplr", "noamlr", "reducelronplateau", ""], [309, 43, 15, 34])[0]
    conf: dict[str, dict[str, Any]] = {
        "warmuplr": {"warmup_steps": rng.choice([25000, 15000, 40000])},
        "noamlr": {"model_size": 256, "warmup_steps": 25000},
        "reducelronplateau": {"mode": "min", "factor": 0.5, "patience": 1},
    }
    return {"scheduler": name, "scheduler_conf": conf[name]} if name else {}


def _decode(rng: random.Random) -> dict[str, Any]:
    values: Mapping[str, tuple[int, Any]] = {
        "beam_size": (182, rng.choice([10, 20, 1, 60])),
        "ctc_weight": (169, rng.choice([0.3, 0.5, 0.0, 1.0])),
        "lm_weight": (160, rng.choice([0.0, 0.3, 0.6, 1.0])),
        "maxlenratio": (141, rng.choice([0.0, 0.0, 0.0, -50])), "minlenratio": (138, 0.0),
        "penalty": (139, rng.choice([0.0, 0.0, 0.0, 0.1])), "batch_size": (38, 1),
        "nbest": (10, 1), "ngram_weight": (4, 0.0),
    }  # fmt: skip
    return {k: v for k, (often, v) in values.items() if rng.random() < often / 189}


def _language_model(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.6:
        conf = {"pos_enc": None, "embed_unit": 16, "att_unit": 32, "head": 2, "unit": 32,
                "layer": 2, "dropout_rate": 0.1}  # fmt: skip
        model: dict[str, Any] = {"lm": "transformer", "lm_conf": conf}
    else:
        model = {"lm": "seq_rnn", "lm_conf": {"unit": 32, "nlayers": 2}}
    batches: list[dict[str, Any]] = [
        {"batch_type": "numel", "batch_bins": 350000}, {"batch_type": "folded", "batch_size": 64},
        {"batch_type": "sorted", "batch_size": 128},
    ]  # fmt: skip
    return {
        **model, **rng.choice(batches), "optim": "adam", "optim_conf": {"lr": 0.001},
        "max_epoch": 20, "scheduler": "warmuplr", "scheduler_conf": {"warmup_steps": 2500},
        "best_model_criterion": [["valid", "loss", "min"]], "keep_nbest_models": 5,
    }  # fmt: skip
