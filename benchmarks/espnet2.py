"""ESPnet2's recognisers: our search and our runner against its own, on the same weights.

It needs the package espnet: .venv-espnet2/bin/python -m benchmarks espnet2
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.figures import Figure
from espnet3.parallel import BaseRunner
from espnet3.systems.base.inference_provider import InferenceProvider
from espnet3.systems.espnet2.inference import ESPnet2Inference
from espnet3.systems.espnet2.package import task_class

RATE = 16000
N_UTTERANCES = 16
N_ROUNDS = 2
SECONDS = (1.0, 8.0)
# Of a random model all hypotheses end there: about as many tokens as speech has.
DECODING = {"beam_size": 10, "ctc_weight": 0.3, "maxlenratio": 0.4}
BPE_RATIO = 0.12
ALONE_LIMIT, BATCHED_LIMIT, RUNNER_LIMIT = 1 / 4, 1 / 7, 1.05
CASES = (
    ("conformer", 30, False),
    ("conformer", 30, True),
    ("conformer", 5000, False),
    ("e_branchformer", 30, False),
)
"""Encoder, tokens, and whether there is a language model."""

Speech = Sequence[np.ndarray[Any, Any]]
_BUILT: dict[str, Any] = {}
"""For the runner, in this process: to build a model is no part of what is measured."""


def measure() -> Iterator[Figure]:
    """Decode the same noise with each model in all ways."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    sizes = (random.uniform(*SECONDS, N_UTTERANCES) * RATE).astype(int)
    speech = [(random.standard_normal(n) * 0.1).astype(np.float32) for n in sizes]
    with tempfile.TemporaryDirectory() as folder:
        for number, (encoder, n_tokens, with_lm) in enumerate(CASES):
            files = _write(Path(folder, str(number)), encoder, n_tokens, with_lm)
            name = f"{encoder}, {n_tokens} tokens{', Transformer LM' if with_lm else ''}"
            yield from _compare(name, files, speech, with_runner=number == 0)


def _compare(
    name: str, files: dict[str, Any], speech: Speech, with_runner: bool
) -> Iterator[Figure]:
    ours = ESPnet2Inference("asr", decoder="espnet3", **files)
    theirs = ESPnet2Inference("asr", decoder="espnet2", **files)
    ours(list(speech[:1]))  # warms up
    theirs(speech[0])
    found: dict[str, list[str]] = {}
    ways: dict[str, Callable[[], list[Any]]] = {
        "theirs": lambda: [theirs(one) for one in speech],
        "alone": lambda: [ours(one) for one in speech],
        "batched": lambda: ours(list(speech)),
    }
    rounds = [
        {way: _cpu_seconds(decode, way, found) for way, decode in ways.items()}
        for _ in range(N_ROUNDS)
    ]
    cpu = {way: min(one[way] for one in rounds) for way in ways}
    for way, limit in (("alone", ALONE_LIMIT), ("batched", BATCHED_LIMIT)):
        words = "one by one" if way == "alone" else f"{len(speech)} at once"
        what = f"{name}: our search, {words}; user CPU against ESPnet2's own"
        yield Figure(what, cpu[way], "s", cpu["theirs"], limit)
        pairs = zip(found[way], found["theirs"], strict=True)
        n_other = sum(mine != other.replace("<sos/eos>", "") for mine, other in pairs)
        yield Figure(
            f"the same: best hypotheses that differ of {len(speech)}", n_other, "", limit=0
        )
    if with_runner:
        _BUILT.update(model=theirs, dataset=speech)
        runner = _Runner(_Provider({}))
        through = _cpu_seconds(lambda: runner(range(len(speech))), "runner", found)
        again = _cpu_seconds(ways["theirs"], "theirs", found)
        what = f"{name}: ESPnet2's own search through our runner; user CPU against a loop"
        yield Figure(what, through, "s", min(again, cpu["theirs"]), RUNNER_LIMIT)


class _Provider(InferenceProvider):
    @staticmethod
    def build_dataset(config: Any) -> Any:
        return _BUILT["dataset"]

    @staticmethod
    def build_model(config: Any) -> Any:
        return _BUILT["model"]


class _Runner(BaseRunner):
    @staticmethod
    def forward(idx: int, dataset: Speech, model: Any) -> Any:
        return model(dataset[idx])


def _cpu_seconds(decode: Callable[[], Any], way: str, found: dict[str, list[str]]) -> float:
    begin = os.times().user
    results = decode()
    taken = os.times().user - begin
    found[way] = [one.text for one in results]
    return taken


def _write(folder: Path, encoder: str, n_tokens: int, with_lm: bool) -> dict[str, Any]:
    """Write a model of ESPnet2 with random weights; return the arguments to decode with it."""
    tokens = ["<blank>", "<unk>", *(f"t{i}" for i in range(n_tokens - 3)), "<sos/eos>"]
    sizes = {"output_size": 144, "attention_heads": 4, "num_blocks": 4, "linear_units": 576}
    keys = {
        "encoder": encoder,
        "encoder_conf": {**sizes, "input_layer": "conv2d"},
        "decoder": "transformer",
        "decoder_conf": {"attention_heads": 4, "num_blocks": 3, "linear_units": 576},
        "model_conf": {"ctc_weight": 0.3},
        "token_type": "word",
    }
    ratio = DECODING["maxlenratio"] if n_tokens < 1000 else BPE_RATIO
    files = {**DECODING, **_save(folder / "asr", "asr", keys, tokens), "maxlenratio": ratio}
    if with_lm:
        lm = {"pos_enc": "sinusoidal", "embed_unit": 64, "att_unit": 144, "head": 4, "unit": 576}
        lm_keys = {"lm": "transformer", "lm_conf": {**lm, "layer": 3}, "token_type": "word"}
        saved = _save(folder / "lm", "lm", lm_keys, tokens)
        files |= {"lm_train_config": saved["config"], "lm_file": saved["weights"]}
        files["lm_weight"] = 0.5
    return files


def _save(folder: Path, task: str, keys: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    torch.manual_seed(0)
    kind = task_class(task)
    defaults = {k: {} if k.endswith("_conf") else v for k, v in kind.get_default_config().items()}
    values = {**defaults, "joint_net_conf": None, "token_list": tokens, **keys}
    model = kind.build_model(argparse.Namespace(**values))
    with torch.no_grad():  # random outputs are nearly uniform, and every hypothesis as good
        for name, weight in model.named_parameters():
            if name.endswith(("output_layer.weight", "ctc_lo.weight", "lm.decoder.weight")):
                weight.mul_(8)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"token_list": tokens, **keys}))
    torch.save(model.state_dict(), folder / "model.pth")
    return {"config": folder / "config.yaml", "weights": folder / "model.pth"}
