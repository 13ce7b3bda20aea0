"""ESPnet2's recognisers: our search and our runner against its own, on the same weights.

It needs the package espnet: .venv-espnet2/bin/python -m benchmarks espnet2
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
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
N_UTTERANCES = 32
"""All of them are the batch of the batched search."""
PART = 4
"""Every fourth is decoded by whole programs, and every eighth through our runner."""
SECONDS = (0.4, 14.0)
# Hypotheses of a random model end at a limit, of 31 frames a second: at 12 characters a second, at
# 4 tokens of 5,000, as speech has them, and in the case of short outputs at one.
DECODING = {"beam_size": 10, "ctc_weight": 0.3, "maxlenratio": 0.4}
BPE_RATIO, SHORT_RATIO = 0.12, 0.03
ALONE_LIMIT, BATCHED_LIMIT, RUNNER_LIMIT = 1 / 4, 1 / 7, 1.05
SMALL = {"output_size": 144, "attention_heads": 4, "num_blocks": 4, "linear_units": 576}
LARGE = {"output_size": 256, "attention_heads": 4, "num_blocks": 12, "linear_units": 2048}
CASES = (
    ("conformer", 30, False, SMALL),
    ("conformer", 30, True, SMALL),
    ("conformer", 5000, False, SMALL),
    ("e_branchformer", 30, False, SMALL),
    ("e_branchformer", 5000, True, SMALL),
    ("conformer", 5000, False, LARGE),
)
"""Encoder, tokens, whether there is a language model, and the encoder's size."""
STEP_LIMIT, N_BATCHES, PER_ROUND = 1.05, 60, 10
N_FILES = 64

Speech = Sequence[np.ndarray[Any, Any]]
_BUILT: dict[str, Any] = {}
"""For the runner, in this process: to build a model is no part of what is measured."""


def measure() -> Iterator[Figure]:
    """Decode the same noise with each model in all ways."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    sizes = random.permutation(np.linspace(*SECONDS, N_UTTERANCES)) * RATE
    speech = [(random.standard_normal(int(n)) * 0.1).astype(np.float32) for n in sizes]
    with tempfile.TemporaryDirectory() as folder:
        for number, (encoder, n_tokens, with_lm, sizes_of) in enumerate(CASES):
            files = _write(Path(folder, str(number)), encoder, n_tokens, with_lm, sizes_of)
            name = f"{encoder}, {n_tokens} tokens{', Transformer LM' if with_lm else ''}"
            is_large = sizes_of is LARGE
            name += ", large, short outputs" if is_large else ""
            yield from _compare(name, files, speech, with_runner=number == 0, is_large=is_large)
        yield from _whole_decoding(Path(folder), speech[::PART])
        yield from _reading(Path(folder))
        yield from _training(Path(folder, "0", "asr"))


def _compare(
    name: str, files: dict[str, Any], speech: Speech, *, with_runner: bool, is_large: bool
) -> Iterator[Figure]:
    ours = ESPnet2Inference("asr", decoder="espnet3", **files)
    theirs = ESPnet2Inference("asr", decoder="espnet2", **files)
    ours(list(speech[:2]))  # warms up
    theirs(speech[0])
    found: dict[str, list[Any]] = {"theirs": [], "alone": [], "batched": [], "encoder": []}
    cpu = dict.fromkeys(found, 0.0)
    ways: dict[str, Callable[[Any], list[Any]]] = {
        "theirs": lambda one: [theirs(one)],
        "alone": lambda one: [ours(one)],
        "encoder": lambda one: [_encode(theirs, one)],
    }
    # By turns, so that all see the same load of the machine.
    n_batched = 0
    for number, one in enumerate(speech):
        for way, decode in ways.items():
            cpu[way] += _cpu_seconds(decode, way, found, one)
        if number % (N_UTTERANCES // 2) == 0:
            found["batched"] = []
            cpu["batched"] += _cpu_seconds(ours, "batched", found, list(speech))
            n_batched += 1
    cpu["batched"] /= n_batched
    for way, limit in (("alone", ALONE_LIMIT), ("batched", BATCHED_LIMIT)):
        words = "one by one" if way == "alone" else f"{len(speech)} at once"
        what = f"{name}: our search, {words}; user CPU against ESPnet2's own"
        # Of a large model the encoder, which is ESPnet2's own in both, takes most of the time.
        yield Figure(what, cpu[way], "s", cpu["theirs"], None if is_large else limit)
        pairs = zip(found[way], found["theirs"], strict=True)
        n_other = sum(mine.text != other.text.replace("<sos/eos>", "") for mine, other in pairs)
        yield Figure(
            f"the same: best hypotheses that differ of {len(speech)}", n_other, "", limit=0
        )
    what = "beside: the same: the encoder alone, one by one; against all of ESPnet2's decoding"
    yield Figure(what, cpu["encoder"], "s", cpu["theirs"])
    n_tokens = sum(len(one.tokens) for one in found["alone"])
    seconds = sum(map(len, speech)) / RATE
    yield Figure("beside: the same: tokens a second of speech", n_tokens / seconds, "")
    if with_runner:
        some = speech[:: 2 * PART]
        _BUILT.update(model=theirs, dataset=some)
        runner = _Runner(_Provider({}))
        nothing: dict[str, list[Any]] = {"": []}
        again = [_cpu_seconds(lambda: [theirs(one) for one in some], "", nothing)]
        through = _cpu_seconds(lambda: runner(range(len(some))), "", nothing)
        again.append(_cpu_seconds(lambda: [theirs(one) for one in some], "", nothing))
        what = f"{name}: ESPnet2's own search through our runner; user CPU against a loop"
        yield Figure(what, through, "s", sum(again) / 2, RUNNER_LIMIT)


def _encode(theirs: Any, one: np.ndarray[Any, Any]) -> None:
    with torch.inference_mode():
        theirs._theirs.asr_model.encode(torch.from_numpy(one)[None], torch.tensor([len(one)]))


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


def _cpu_seconds(
    decode: Callable[..., list[Any]], way: str, found: dict[str, list[Any]], *arguments: Any
) -> float:
    # os.times() counts hundredths, which is much of a short utterance.
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    found[way] += decode(*arguments)
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime - begin


# --- Whole programs, data, training ------------------------------------------------------------


def _whole_decoding(folder: Path, speech: Speech) -> Iterator[Figure]:
    """Decode a test set from files, each way in two processes that import ESPnet2 themselves."""
    data = _write_data(folder / "data", speech)
    model = folder / "0" / "asr"
    (folder / "conf").mkdir()
    (folder / "conf/inference.yaml").write_text(
        yaml.safe_dump(
            {
                "dataset": {
                    "test": [
                        {"name": "t", "data_src": "kaldi", "data_src_args": {"path": str(data)}}
                    ]
                },
                "model": {
                    "_target_": "espnet3.systems.espnet2.inference.ESPnet2Inference",
                    "task": "asr", "config": f"{model}/config.yaml",
                    "weights": f"{model}/model.pth", **DECODING,
                },
                "device": "cpu", "input_key": "speech",
                "output_fn": "espnet3.systems.espnet2.inference.output_fn",
                "batch_seconds": 60, "parallel": {"env": "local", "n_workers": 2},
            }
        )
    )  # fmt: skip
    (folder / "run.py").write_text(
        "import sys\nfrom espnet3.cli.recipe import run_recipe\n"
        "from espnet3.systems.asr.system import ASRSystem\n"
        "if __name__ == '__main__':\n    sys.exit(run_recipe(ASRSystem))\n"
    )
    lines = (data / "wav.scp").read_text().splitlines(keepends=True)
    commands = []
    for part in range(2):
        (folder / f"keys.{part}").write_text("".join(lines[part::2]))
        options = {
            "ngpu": 0, "num_workers": 0, "output_dir": folder / f"theirs.{part}",
            "key_file": folder / f"keys.{part}",
            "data_path_and_name_and_type": f"{data}/wav.scp,speech,sound",
            "asr_train_config": f"{model}/config.yaml", "asr_model_file": f"{model}/model.pth",
            **DECODING,
        }  # fmt: skip
        words = [w for key, value in options.items() for w in (f"--{key}", str(value))]
        commands.append([sys.executable, "-W", "ignore", "-m", "espnet2.bin.asr_inference", *words])
    own = [sys.executable, "-W", "ignore", "run.py", "--stages", "infer", "--inference_config",
           "conf/inference.yaml"]  # fmt: skip
    ours, theirs = _wall([own], folder), _wall(commands, folder)
    what = f"whole decoding of {len(lines)} files in 2 processes, clock; against ESPnet2's two"
    yield Figure(f"{what} over split lists", ours, "s", theirs)


def _wall(commands: Sequence[Sequence[str]], folder: Path) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin = time.perf_counter()
    started = [
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for command in commands
    ]
    for process in started:
        _, told = process.communicate()
        if process.returncode:
            raise RuntimeError(told.decode()[-2000:])
    return time.perf_counter() - begin


def _write_data(folder: Path, speech: Speech) -> Path:
    import soundfile

    folder.mkdir(parents=True)
    with (folder / "wav.scp").open("w") as wavs, (folder / "text").open("w") as texts:
        for number, one in enumerate(speech):
            path = folder / f"u{number:04d}.wav"
            soundfile.write(path, one, RATE)
            wavs.write(f"u{number:04d} {path}\n")
            texts.write(f"u{number:04d} t1 t2 t3\n")
    return folder


def _reading(folder: Path) -> Iterator[Figure]:
    """Read a data directory with ESPnet2's dataset and with ours, with its own preprocessor."""
    from espnet2.train.dataset import ESPnetDataset

    from espnet3.components.data.sources.kaldi import Dataset
    from espnet3.systems.espnet2.preprocessor import ESPnet2Preprocessor

    random = np.random.default_rng(1)
    speech = [(random.standard_normal(8 * RATE) * 0.1).astype(np.float32) for _ in range(N_FILES)]
    data = _write_data(folder / "reading", speech)
    config = str(folder / "0" / "asr" / "config.yaml")
    preprocess = ESPnet2Preprocessor("asr", config)
    ours = Dataset(path=str(data))
    preprocess(ours[0])
    kinds = [(f"{data}/wav.scp", "speech", "sound"), (f"{data}/text", "text", "text")]
    theirs = ESPnetDataset(kinds, preprocess=preprocess._build("build_preprocess_fn"))
    keys = [f"u{number:04d}" for number in range(N_FILES)]
    best = [float("inf"), float("inf")]
    for _ in range(3):
        for way, read in enumerate(
            (
                lambda: [preprocess(ours[i]) for i in range(N_FILES)],
                lambda: [theirs[k] for k in keys],
            )
        ):
            begin = time.process_time()
            read()
            best[way] = min(best[way], time.process_time() - begin)
    yield Figure(
        f"{N_FILES} files of 8 s read and preprocessed, CPU; against ESPnet2's dataset",
        best[0] * 1e3, "ms", best[1] * 1e3,
    )  # fmt: skip


def _training(model: Path) -> Iterator[Figure]:
    """Train the model of ESPnet2 in our `train` and in a bare loop, by turns, alike to the bit."""
    import copy

    from benchmarks.two_loops import BareLoop, compare
    from espnet3.systems.espnet2.model import ESPnet2Model

    keys = {**yaml.safe_load((model / "config.yaml").read_text()), "token_type": "word"}
    torch.manual_seed(0)
    ours = ESPnet2Model("asr", **keys)
    random = np.random.default_rng(2)
    batches = []
    for _ in range(N_BATCHES):
        speech = torch.from_numpy((random.standard_normal((2, 3 * RATE)) * 0.1).astype(np.float32))
        text = torch.from_numpy(random.integers(2, 28, (2, 10)))
        batches.append(
            {"speech": speech, "speech_lengths": torch.full((2,), 3 * RATE),
             "text": text, "text_lengths": torch.full((2,), 10)}
        )  # fmt: skip
    # With a generator of its own, so that dropout draws the same in both loops.
    data: Any = batches
    loader: Any = torch.utils.data.DataLoader(data, batch_size=None, generator=torch.Generator())
    bare = BareLoop(copy.deepcopy(ours), batches, clip=5.0)
    config = {
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-4, "weight_decay": 0.01},
        "trainer": {"gradient_clip_val": 5.0, "log_every_n_steps": 10},
    }
    steps = compare(ours, loader, bare, config, PER_ROUND)
    own, other = steps.least(1)
    what = "a training step of a conformer of ESPnet2 in `train`, CPU; against a bare loop"
    yield Figure(what, own, "ms", other, STEP_LIMIT)


def _write(
    folder: Path, encoder: str, n_tokens: int, with_lm: bool, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Write a model of ESPnet2 with random weights; return the arguments to decode with it."""
    tokens = ["<blank>", "<unk>", *(f"t{i}" for i in range(n_tokens - 3)), "<sos/eos>"]
    decoder = {"attention_heads": 4, "num_blocks": 3, "linear_units": 576}
    if sizes is LARGE:
        decoder |= {"num_blocks": 6, "linear_units": 2048}
    keys = {
        "encoder": encoder,
        "encoder_conf": {**sizes, "input_layer": "conv2d"},
        "decoder": "transformer",
        "decoder_conf": decoder,
        "model_conf": {"ctc_weight": 0.3},
        "token_type": "word",
    }
    ratio = DECODING["maxlenratio"] if n_tokens < 1000 else BPE_RATIO
    if sizes is LARGE:
        ratio = SHORT_RATIO
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
    # All keys, as ESPnet2's own programs expect them, with lists for tuples.
    plain = json.loads(json.dumps(values, default=str))
    (folder / "config.yaml").write_text(yaml.safe_dump(plain))
    torch.save(model.state_dict(), folder / "model.pth")
    return {"config": folder / "config.yaml", "weights": folder / "model.pth"}
