"""Write tiny models of ESPnet2 with random weights, as its trainings leave them."""

import argparse
from pathlib import Path

import numpy as np
import soundfile
import torch
import yaml

TOKENS = ["<blank>", "<unk>", "<space>", *"abcdefghijklmnopqrst", "<sos/eos>"]
MARKS = ["<na>", "<nospeech>", "<en>", "<asr>", "<notimestamps>",
         *(f"<{n * 0.02:.2f}>" for n in range(51)), "<sop>", "<sos>", "<eos>"]  # fmt: skip
"""Those of the task s2t: tasks, languages, and times of a second."""
MARKED = [*TOKENS[:3], *MARKS[:-3], *TOKENS[3:-1], *MARKS[-3:]]

_ENCODERS = {
    "e_branchformer": {"cgmlp_linear_units": 32, "cgmlp_conv_kernel": 7, "merge_conv_kernel": 7},
    "conformer": {"cnn_module_kernel": 7, "use_cnn_module": True, "macaron_style": True},
    "transformer": {},
}
_DECODERS = {
    "transformer": {"attention_heads": 2, "num_blocks": 2, "linear_units": 32},
    "rnn": {
        "num_layers": 1,
        "hidden_size": 16,
        "att_conf": {"adim": 16, "aheads": 2, "aconv_chans": 2, "aconv_filts": 2},
    },
}


def asr_keys(encoder="conformer", decoder="transformer"):
    """The keys of a training config for a tiny recogniser."""
    common = {"output_size": 16, "attention_heads": 2, "num_blocks": 1, "linear_units": 32}
    return {
        "encoder": encoder,
        "encoder_conf": {**common, "input_layer": "conv2d", **_ENCODERS[encoder]},
        "decoder": decoder,
        "decoder_conf": _DECODERS.get(decoder, {}),
        "model_conf": {"ctc_weight": 0.3 if decoder else 1.0},
        "token_type": "char",
    }


def task_keys(task):
    """The keys of a training config for a tiny model of a task, but for its token lists."""
    recogniser = asr_keys()
    encoder = {key: recogniser[key] for key in ("encoder", "encoder_conf")}
    decoder = {
        "decoder": "transformer",
        "decoder_conf": {"attention_heads": 2, "num_blocks": 1, "linear_units": 32},
    }
    stft = {"n_fft": 256, "hop_length": 64}
    return {
        "asr": lambda: recogniser,
        "slu": lambda: recogniser,
        "transducer": lambda: {
            **encoder,
            "decoder": "transducer",
            "decoder_conf": {"hidden_size": 16, "num_layers": 1},
            "joint_net_conf": {"joint_space_size": 16},
            "model_conf": {"ctc_weight": 0.3},
            "token_type": "char",
        },
        "asr_transducer": lambda: {
            "encoder_conf": {
                "main_conf": {},
                "input_conf": {"vgg_like": False},
                "body_conf": [
                    {
                        "block_type": "conformer",
                        "hidden_size": 16,
                        "linear_size": 32,
                        "heads": 2,
                        "conv_mod_kernel_size": 7,
                    }
                ],
            },
            "decoder": "rnn",
            "decoder_conf": {"embed_size": 16, "hidden_size": 16},
            "joint_network_conf": {"joint_space_size": 16},
            "token_type": "char",
        },
        "st": lambda: {
            **encoder,
            **decoder,
            "model_conf": {"asr_weight": 0.3, "mt_weight": 0.0, "mtlalpha": 1.0},
            "token_type": "char",
            "src_token_type": "char",
        },
        "mt": lambda: {
            "encoder": "transformer",
            "encoder_conf": {
                "output_size": 16,
                "attention_heads": 2,
                "num_blocks": 1,
                "linear_units": 32,
                "input_layer": "linear",
            },
            "frontend_conf": {"embed_dim": 16},
            **decoder,
            "token_type": "char",
            "src_token_type": "char",
        },
        "lm": lambda: {
            "lm": "seq_rnn",
            "lm_conf": {"unit": 16, "nlayers": 1},
            "token_type": "char",
        },
        "asr2": lambda: {
            **task_keys("mt"),
            "model": "discrete_asr",
            "model_conf": {"ctc_weight": 0.3},
        },
        "s2t": lambda: {
            **recogniser,
            "preprocessor": "s2t",
            "preprocessor_conf": {
                "speech_length": 1,
                "speech_resolution": 0.02,
                "last_time_symbol": "<1.00>",
                "text_prev_apply_prob": 0.5,
                "time_apply_prob": 0.5,
            },
        },
        "lid": lambda: {
            **{
                key: value
                for key, value in task_keys("spk").items()
                if key not in ("spk_num", "projector")
            },
            "projector": "rawnet3",
            "lang_num": 2,
        },
        "tts": lambda: {
            "tts": "tacotron2",
            "tts_conf": {
                "embed_dim": 16,
                "elayers": 1,
                "eunits": 16,
                "econv_layers": 1,
                "econv_chans": 16,
                "dlayers": 1,
                "dunits": 16,
                "prenet_layers": 1,
                "prenet_units": 16,
                "postnet_layers": 1,
                "postnet_chans": 16,
                "adim": 16,
                "aconv_chans": 4,
                "use_guided_attn_loss": False,
            },
            "feats_extract": "fbank",
            "feats_extract_conf": {
                "fs": 16000,
                "n_fft": 512,
                "hop_length": 256,
                "n_mels": 20,
                "fmin": 80,
                "fmax": 7600,
            },
            "token_type": "char",
        },
        "enh": lambda: {
            "encoder": "stft",
            "encoder_conf": stft,
            "decoder": "stft",
            "decoder_conf": stft,
            "separator": "rnn",
            "separator_conf": {"rnn_type": "blstm", "num_spk": 1, "layer": 1, "unit": 16},
            "criterions": [
                {
                    "name": "si_snr",
                    "conf": {},
                    "wrapper": "fixed_order",
                    "wrapper_conf": {"weight": 1.0},
                }
            ],
        },
        "spk": lambda: {
            "frontend": "melspec_torch",
            "frontend_conf": {"n_mels": 40},
            "encoder": "ecapa_tdnn",
            "encoder_conf": {"model_scale": 8, "ndim": 32, "output_size": 48},
            "pooling": "chn_attn_stat",
            "projector": "rawnet3",
            "projector_conf": {"output_size": 16},
            "loss": "aamsoftmax",
            "loss_conf": {"margin": 0.3, "scale": 15},
            "model_conf": {"extract_feats_in_collect_stats": False},
            "spk_num": 2,
        },
    }[task]()


def write_asr(
    folder,
    *,
    encoder="conformer",
    decoder="transformer",
    encoder_conf=None,
    end_bias=0.0,
    blank_bias=0.0,
):
    from espnet2.tasks.asr import ASRTask

    def sharpen(name, values):
        # Random outputs are nearly uniform, and no search could tell its hypotheses apart.
        if name in ("decoder.output_layer.weight", "ctc.ctc_lo.weight", "decoder.output.weight"):
            values.mul_(8)
        if name == "decoder.output_layer.bias":
            values[0] -= 20  # no training leads a decoder to say blank
            values[-1] += end_bias
        if name == "ctc.ctc_lo.bias":
            values[0] += blank_bias

    keys = asr_keys(encoder, decoder)
    keys["encoder_conf"] |= encoder_conf or {}
    return write_model(Path(folder), ASRTask, keys, sharpen)


def write_language_model(folder, kind):
    from espnet2.tasks.lm import LMTask

    conf = {
        "transformer": {
            "pos_enc": "sinusoidal",
            "embed_unit": 8,
            "att_unit": 16,
            "head": 2,
            "unit": 32,
            "layer": 2,
        },
        "seq_rnn": {"unit": 16, "nlayers": 2},
    }[kind]

    def sharpen(name, values):
        if name == "lm.decoder.weight":
            values.mul_(8)

    keys = {"lm": kind, "lm_conf": conf, "token_type": "char"}
    return write_model(Path(folder), LMTask, keys, sharpen)


def write_model(folder, task, keys, change=lambda name, values: None):
    """Build a model, change its parameters, and write config and weights."""
    torch.manual_seed(1)
    config = {**task.get_default_config(), "token_list": TOKENS, "version": "202511", **keys}
    for key in [key for key in config if key.endswith("_conf") and key not in keys]:
        config[key] = {} if isinstance(config[key], dict) else config[key]
    model = task.build_model(argparse.Namespace(**config)).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            change(name, values)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(_plain(config)))
    torch.save(model.state_dict(), folder / "model.pth")
    return folder


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def noise(n=5, seed=0):
    """Return `n` utterances of different lengths, about a second at 16 kHz."""
    random = np.random.default_rng(seed)
    sizes = random.integers(4000, 16000, n)
    return [(random.standard_normal(size) * 0.1).astype(np.float32) for size in sizes]


def write_data(folder, text="a b"):
    """Write a Kaldi data directory with five recordings of noise."""
    folder.mkdir(parents=True)
    names = []
    for i, samples in enumerate(noise()):
        soundfile.write(folder / f"utt{i}.wav", samples, 16000, subtype="FLOAT")
        names.append(f"utt{i}")
    (folder / "wav.scp").write_text("".join(f"{n} {folder}/{n}.wav\n" for n in names))
    (folder / "text").write_text("".join(f"{n} {text}\n" for n in names))


# The files of each task's data, as ESPnet2's recipes name them: path, name and type.
DATA_FILES = {
    "asr": [("wav.scp", "speech", "sound"), ("text", "text", "text")],
    "mt": [("src_text", "src_text", "text"), ("text", "text", "text")],
    "lm": [("text", "text", "text")],
    "enh": [("wav.scp", "speech_mix", "sound"), ("spk1.scp", "speech_ref1", "sound")],
    "spk": [("wav.scp", "speech", "sound"), ("utt2sid", "spk_labels", "text_int")],
}
DATA_FILES["st"] = [*DATA_FILES["asr"], ("src_text", "src_text", "text")]
DATA_FILES["tts"] = DATA_FILES["asr"]


def write_task_data(folder):
    """Write recordings with all that the tasks read of them; all different in length and text."""
    folder.mkdir(parents=True)
    tables = {name: [] for name in ("wav.scp", "spk1.scp", "text", "src_text", "utt2sid")}
    for i, samples in enumerate(noise(4, seed=5)):
        clean = np.sin(np.arange(len(samples)) * 0.05 * (i + 1)).astype(np.float32) * 0.3
        for name, audio in (("wav", clean + samples), ("spk1", clean)):
            file = folder / f"{name}{i}.wav"
            soundfile.write(file, audio, 16000, subtype="FLOAT")
            tables[f"{name}.scp"].append(str(file))
        tables["text"].append("abc dab cd"[: 4 + 2 * i])
        tables["src_text"].append("t sr qpq rs"[: 5 + 2 * i])
        tables["utt2sid"].append(str(i % 2))
    for name, values in tables.items():
        lines = [f"utt{i} {value}\n" for i, value in enumerate(values)]
        (folder / name).write_text("".join(lines))
    (folder / "tokens.txt").write_text("\n".join(TOKENS) + "\n")
