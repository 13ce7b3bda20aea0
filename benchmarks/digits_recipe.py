"""The recipe egs3/digits/asr, run in a folder of its own, with models that were not trained."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file

from espnet3.config.load import LoadedConfig
from espnet3.io.tables import read_jsonl
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.training import build_model

RECIPE = Path(__file__).parents[1] / "egs3/digits/asr"
TEST_SET = "test_seen"
BATCH_SECONDS = 60
DECODERS = {
    "greedy": "{_target_: espnet3.components.decoding.ctc_greedy.GreedyCTC}",
    "prefix beam 10": "{_target_: espnet3.components.decoding.ctc_beam.PrefixBeamCTC}",
    "joint beam 10": "{_target_: espnet3.components.decoding.joint_beam.JointBeam}",
}

_MODELS = "espnet3.components.models"
_HYBRID = (
    "model.encoder=null",  # or else the two would be merged
    f"model.encoder={{_target_: {_MODELS}.conformer.Conformer, input_size: 40, hidden: 144}}",
    f"model.decoder={{_target_: {_MODELS}.attention_decoder.TransformerDecoder, _partial_: true}}",
)
MODELS: dict[str, tuple[str, ...]] = {"default": (), "hybrid": _HYBRID}
"""By name, what is written over conf/training.yaml: nothing; a Conformer with both outputs."""


@dataclass(frozen=True)
class Decoding:
    """The stage `infer`, with its config loaded."""

    loaded: LoadedConfig
    results: Path

    def __call__(self) -> str:
        """Decode anew; return the texts that were found."""
        shutil.rmtree(self.results, ignore_errors=True)
        path: Path = ASRSystem(inference=self.loaded).infer()[TEST_SET]["hyp"]
        return path.read_text()


class DigitsRecipe:
    """Runs stages of the recipe as its config files say, but for what is written over them.

    The weights are random. That costs a network what trained ones cost; a beam search does more,
    since nothing is unlikely, and the attention decoder does not know where to end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def data_dir(self) -> Path:
        return self.folder / "data" / "digits"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def training(self, model: str = "default", *overrides: str) -> LoadedConfig:
        """Return the training config of one of `MODELS`."""
        return _load("training", *self._places(model), *MODELS[model], *overrides)

    def make_corpus(self, n_train: int, n_test: int, n_workers: int = 1) -> int:
        """Speak the corpus, and return its number of utterances."""
        sizes = {"n_train": n_train, "n_valid": 10, "n_test": n_test}
        overrides = [f"create_dataset.{name}={size}" for name, size in sizes.items()]
        workers = f"parallel.n_workers={n_workers}"
        ASRSystem(self.training("default", *overrides, workers)).create_dataset()
        return n_train + 10 + 2 * n_test

    def make_models(self) -> None:
        """Leave behind for each model what a training would: tokenizer, config, weights."""
        for name in MODELS:
            loaded = self.training(name, "parallel.n_workers=1")
            ASRSystem(loaded).train_tokenizer()
            torch.manual_seed(0)
            model = build_model(loaded.plain())
            folder = Path(loaded.config.exp_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_file(model.state_dict(), folder / Path(self.weights(name)).name)
            OmegaConf.save(loaded.resolved(), folder / "config.yaml")

    def weights(self, model: str) -> str:
        """Return the path of the weights."""
        return str(_load("inference", *self._places(model)).config.model.weights)

    def rows(self) -> list[dict[str, Any]]:
        """Return the utterances of the test set."""
        return list(read_jsonl(self.data_dir / f"{TEST_SET}.jsonl"))

    def repeat(self, n_utterances: int) -> tuple[str, float]:
        """Make a test set of as many utterances, from those that there are, again and again.

        Returns:
            Its manifest, and its seconds.
        """
        rows = self.rows()
        chosen = [{**rows[i % len(rows)], "utt_id": f"u{i:06d}"} for i in range(n_utterances)]
        path = self.data_dir / f"repeated-{n_utterances}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in chosen))
        return str(path), sum(row["duration"] for row in chosen)

    def decoding(self, model: str, decoder: str, manifest: str, *overrides: str) -> Decoding:
        """Return what decodes a manifest with the stage `infer`, in this process."""
        own = self.decoding_overrides(model, decoder, manifest)
        loaded = _load("inference", *own, "parallel.n_workers=1", *overrides)
        return Decoding(loaded, self.results)

    def decoding_overrides(self, model: str, decoder: str, manifest: str) -> list[str]:
        """Return what to write over conf/inference.yaml."""
        return [
            *self._places(model),
            f"test_set={TEST_SET}",
            f"dataset.test.0.data_src_args.path={manifest}",
            f"inference_dir={self.results}",
            f"model.decoder={DECODERS[decoder]}",
        ]

    def _places(self, model: str) -> list[str]:
        return [
            f"recipe_dir={RECIPE}",
            f"data_dir={self.folder}/data",
            f"exp_dir={self.folder}/exp/{model}",
        ]


def _load(kind: str, *overrides: str) -> LoadedConfig:
    files = {kind: [RECIPE / f"conf/{kind}.yaml"]}
    loaded: LoadedConfig = getattr(load_configs(files, overrides, recipe_dir=RECIPE), kind)
    return loaded


@contextmanager
def digits_recipe(*, n_train: int = 40, n_test: int = 200) -> Iterator[DigitsRecipe]:
    """Make the recipe in a folder that is removed at the end, with sets of these sizes."""
    with TemporaryDirectory() as folder:
        recipe = DigitsRecipe(Path(folder))
        recipe.make_corpus(n_train, n_test)
        recipe.make_models()
        yield recipe
