"""The recipe that docs/asr.md shows, file by file: it trains, decodes, scores, and all load."""

import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml

from espnet3.cli.main import main
from espnet3.cli.recipe import run_recipe
from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.targets import locate
from espnet3.systems.asr.inference_checks import check_recognizer
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.base.context import load_configs

PAGE = (Path(__file__).parents[2] / "docs" / "asr.md").read_text()
NAMED = re.compile(r"```(?:yaml|python)\n# (\S+\.(?:yaml|py))[^\n]*\n(.*?)```", re.DOTALL)
FILES = dict(NAMED.findall(PAGE))
DECODERS = ("inference_joint", "inference_lexicon", "inference_ngram", "inference_long")
# Sizes for a test; what they are called and where they stand is the page's.
SMALL = """
dataloader: {train: {num_workers: 0}}
model: {encoder: {n_channels: 8, n_layers: 1}}
trainer: {accelerator: cpu, max_epochs: 1, logger: false}
"""
ONE_WORKER = "parallel: {n_workers: 1}"
WORDS = ("One", "two,", "three", "four.")


def write_corpus(folder: Path, n_utterances: int) -> None:
    """Write noise with texts as a Kaldi directory."""
    random = np.random.default_rng(len(folder.name))
    (folder / "wav").mkdir(parents=True)
    lines = {"wav.scp": "", "text": "", "utt2spk": ""}
    for number in range(n_utterances):
        id, path = f"{folder.name}-{number}", folder / "wav" / f"{number}.wav"
        soundfile.write(path, random.normal(scale=0.1, size=16000 + 800 * number), 16000)
        lines["wav.scp"] += f"{id} {path}\n"
        lines["text"] += f"{id} {WORDS[number % 4]} {WORDS[(number + 1) % 4]}\n"
        lines["utt2spk"] += f"{id} anna\n"
    for name, text in lines.items():
        (folder / name).write_text(text)


@contextmanager
def inside(recipe: Path) -> Iterator[None]:
    """Work in the recipe's folder as its run.py does, and leave nothing behind in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(recipe)
        patch.setattr(sys, "path", [str(recipe), *sys.path])
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(recipe)):
            del sys.modules[name]


def run(*words: str) -> None:
    assert run_recipe(ASRSystem, words, recipe_dir=Path.cwd()) == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return the recipe of the page, trained, decoded and scored."""
    folder = tmp_path_factory.mktemp("page") / "it's mine" / "asr"
    files = {"conf/small.yaml": SMALL, "conf/one_worker.yaml": ONE_WORKER, "src/__init__.py": ""}
    for name, text in {**FILES, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name, size in {"train": 8, "valid": 2, "test": 3}.items():
        write_corpus(folder / "data" / name, size)
    with inside(folder):
        run(
            "--stages", "train_tokenizer", "train-report",
            "--training_config", "conf/training.yaml", "conf/small.yaml",
            "--inference_config", "conf/inference.yaml", "conf/one_worker.yaml",
            "--metrics_config", "conf/metrics.yaml",
        )  # fmt: skip
    return folder


@pytest.fixture
def recipe(trained) -> Iterator[Path]:
    with inside(trained):
        yield trained


def load(kind: str, *names: str) -> tuple[Any, dict[str, Any]]:
    """Return a config of the page, and what it says when interpolations are resolved."""
    files = {"training": ["conf/training.yaml"], kind: [f"conf/{name}.yaml" for name in names]}
    loaded = getattr(load_configs(files), kind)
    return loaded, resolved(loaded.config, loaded=loaded)


def test_the_recipe_ends_in_numbers_and_a_report(recipe):
    results = recipe / "exp/training/inference"
    assert "WER" in (results / "RESULTS.md").read_text()
    assert (results / "report.html").stat().st_size > 10_000
    tokens = (recipe / "data/tokenizer/tokens.txt").read_text().split()
    assert tokens[:3] == ["<blank>", "<unk>", "<space>"]
    assert "o" in tokens
    assert not {"O", ",", "."} & set(tokens)


def test_the_models_learn_from_a_batch(recipe):
    torch.set_num_threads(1)
    _, training = load("training", "training")
    _, hybrid = load("training", "training_hybrid")
    conformer = {**training["model"], **yaml.safe_load(FILES["conf/conformer.yaml"])}
    transducer = yaml.safe_load(FILES["conf/transducer.yaml"])["model"]
    transducer["tokenizer"] = training["model"]["tokenizer"]
    speech, lengths = torch.randn(2, 16000), torch.tensor([16000, 12000])
    tokens, n_tokens = torch.tensor([[3, 4, 5], [6, 7, -1]]), torch.tensor([3, 2])
    for block in (conformer, hybrid["model"], transducer):
        loss, _, _ = instantiate(block)(speech, lengths, tokens, n_tokens)
        loss.backward()
        assert torch.isfinite(loss)
    loss, stats, _ = instantiate(load("training", "training_lm")[1]["model"])(tokens, n_tokens)
    assert torch.isfinite(loss)
    assert "perplexity" in stats


def test_the_decoders_are_made_and_decode(recipe):
    runpy.run_path("make_ngrams.py")
    speech = soundfile.read("data/test/wav/0.wav", dtype="float32")[0]
    for name in DECODERS:
        loaded, config = load("inference", name)
        check_recognizer(loaded)
        block = config["model"]
        if name == "inference_joint":  # its language model is not trained here
            block["decoder"].update(lm=None, ctc_weight=1.0)
        if name == "inference_lexicon":
            pytest.importorskip("flashlight.lib.text.decoder")
        result = instantiate(block, device="cpu")(speech)
        assert isinstance(result.text, str)
        if name == "inference_long":
            assert result.words is not None


def test_every_option_of_the_table_of_decoders_has_the_default_that_it_says():
    rows = re.findall(r"^\| `(\w+\.\w+)`[^|]*\|[^|]*\|(.*)\|$", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for target, options in rows:
        decoder = locate(f"espnet3.components.decoding.{target}")
        parameters = inspect.signature(decoder).parameters
        for name, value in re.findall(r"`(\w+)(?:: ([^`]+))?`", options):
            assert name in parameters
            if value:
                assert parameters[name].default == yaml.safe_load(value), name


def test_the_configs_for_other_machines_load(recipe, capsys):
    _, config = load("training", "training", "gpu")
    assert config["trainer"]["devices"] == 4
    _, config = load("training", "training", "tokenizer_bpe")
    assert config["dataset"]["preprocessor"]["tokenizer"].endswith("tokenizer_bpe")
    loaded, config = load("inference", "inference_joint", "tune")
    check_recognizer(loaded)
    assert config["inference_dir"] == "./exp/training/tune/lm0.5"
    _, config = load("inference", "inference", "parallel_slurm")
    assert config["parallel"]["options"]["walltime"] == "02:00:00"
    words = ("--stages", "train_tokenizer", "--training_config", "conf/training.yaml")
    run(*words, "conf/tokenizer_bpe.yaml", "exp_tag=bpe", "tokenizer.vocab_size=30")
    assert len((recipe / "data/tokenizer_bpe/tokens.txt").read_text().split()) == 30
    launch = ("launch", "conf/training.yaml", "conf/gpu.yaml", "conf/launch_slurm.yaml")
    assert main([*launch, "--dry-run", "--no-check"]) == 0
    assert "#SBATCH --partition=gpu" in capsys.readouterr().out
