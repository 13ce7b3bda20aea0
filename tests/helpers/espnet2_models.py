"""Write tiny models of ESPnet2 with random weights, as its trainings leave them."""

import argparse
from pathlib import Path

import numpy as np
import soundfile
import torch
import yaml

TOKENS = ["<blank>", "<unk>", "<space>", *"abcdefghijklmnopqrst", "<sos/eos>"]

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


def write_asr(folder, *, encoder="conformer", decoder="transformer", end_bias=0.0, blank_bias=0.0):
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

    return write_model(Path(folder), ASRTask, asr_keys(encoder, decoder), sharpen)


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
