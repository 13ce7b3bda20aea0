"""ESPnet2's tasks: trained a few steps by `train`, used by `infer`, and as ESPnet2 itself does."""

import argparse
import contextlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml
from safetensors.torch import load_file

from espnet3.cli.recipe import run_recipe
from espnet3.components.data.collate import PadCollate
from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError
from espnet3.io.scp import read_scp
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.espnet2.data_files import Dataset
from espnet3.systems.espnet2.inference import ESPnet2Inference
from espnet3.systems.espnet2.model import ESPnet2Model
from espnet3.systems.espnet2.package import TASKS, inference_class, task_class
from espnet3.systems.espnet2.preprocessor import ESPnet2Collate, ESPnet2Preprocessor
from espnet3.systems.espnet2.training_config import training_values
from espnet3.systems.espnet2.weights import network_weights
from tests.helpers.espnet2_models import DATA_FILES, task_keys, write_task_data

MODEL = "espnet3.systems.espnet2.model.ESPnet2Model"
PREPROCESSOR = "espnet3.systems.espnet2.preprocessor.ESPnet2Preprocessor"
INFERENCE = "espnet3.systems.espnet2.inference"
TASK_OF = {"transducer": "asr"}
"""Kinds of models whose name is not that of their task."""
ARTIFACTS = {
    "tts": {"wav": {"type": "wav", "sample_rate": 16000}},
    "enh": {"enhanced": {"type": "wav", "sample_rate": 16000}},
    "spk": {"embedding": {"type": "npy"}},
}
SEARCH = {"asr": {"beam_size": 3}, "st": {"beam_size": 3}, "mt": {"beam_size": 3}}
SEARCH["asr_transducer"] = SEARCH["slu"] = {"beam_size": 2}
SEARCH["tts"] = {"options": {"maxlenratio": 1.0}}


class Recipe:
    """A recipe for a kind of model: its data, its configs, and what its stages left."""

    def __init__(self, folder, kind):
        self.folder = folder
        self.kind = kind
        self.task = TASK_OF.get(kind, kind)
        self.files = DATA_FILES.get(self.task, DATA_FILES["asr"])
        write_task_data(folder / "data")
        (folder / "conf").mkdir()
        self.write("train", self.keys())
        self.write("training", self.training())
        self.write("inference", self.inference())

    def write(self, name, values):
        (self.folder / f"conf/{name}.yaml").write_text(yaml.safe_dump(values))

    def keys(self):
        keys = task_keys(self.kind)
        known = task_class(self.task).get_default_config()
        for name in ("token_list", "src_token_list"):
            if name in known:
                keys[name] = "data/tokens.txt"
        if self.task == "tts":
            keys |= {"normalize_conf": {"stats_file": "exp/stats/train/feats_stats.npz"}}
        return keys

    def source(self):
        files = [[f"data/{path}", name, type] for path, name, type in self.files]
        return {"data_src": "espnet3.systems.espnet2.data_files", "data_src_args": {"files": files}}

    def training(self):
        ours = {"task": self.task, "config": "conf/train.yaml"}
        # ESPnet2's own of speakers does not run beside NumPy 2.4; labels are numbers already.
        preprocessor = None if self.task == "spk" else {"_target_": PREPROCESSOR, **ours}
        return {
            "exp_tag": "training",
            "seed": 1,
            "dataset": {
                "train": [self.source()],
                "valid": [self.source()],
                "preprocessor": preprocessor,
            },
            "dataloader": {"train": {"batch_size": 2}, "valid": {"batch_size": 2}},
            "stats_dir": "exp/stats",
            "model": {"_target_": MODEL, **ours},
            "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.002},
            "best_model_criterion": [["valid/loss", 1, "min"]],
            "trainer": {"accelerator": "cpu", "max_epochs": 2, "logger": False},
        }

    def inference(self):
        reads = TASKS[self.task].reads
        test = {"name": "test", **self.source()}
        return {
            "dataset": {"test": [test]},
            "model": {
                "_target_": f"{INFERENCE}.ESPnet2Inference",
                "task": self.task,
                "config": "exp/training/config.yaml",
                "weights": "exp/training/valid.loss.ave_1best.safetensors",
                **SEARCH.get(self.task, {}),
            },
            "input_key": reads,
            "output_fn": f"{INFERENCE}.output_fn",
            "output_artifacts": ARTIFACTS.get(self.task, {}),
            "batch_size": 3,
        }

    def run(self, *words):
        stages = ["--training_config", "conf/training.yaml"]
        return run_recipe(ASRSystem, [*words, *stages], recipe_dir=self.folder)

    def train(self):
        first = ["collect_stats"] if self.task == "tts" else []
        return self.run("--stages", *first, "train")

    def infer(self, *words):
        config = ["--inference_config", "conf/inference.yaml"]
        return self.run("--stages", "infer", *config, *words)

    def field(self, name):
        (path,) = (self.folder / "exp").glob(f"**/inference/test/{name}.scp")
        return {
            id: path.parent / value if name in ARTIFACTS.get(self.task, {}) else value
            for id, value in read_scp(path)
        }

    def ours(self, **settings):
        block = {**self.inference()["model"], **settings}
        del block["_target_"]
        return ESPnet2Inference(**block)

    def export(self):
        """Write what was trained as ESPnet2 does: a complete config, and a .pth."""
        folder = self.folder / "exp/espnet2"
        folder.mkdir(exist_ok=True)
        values = training_values(self.task, "conf/train.yaml", {})
        (folder / "config.yaml").write_text(yaml.safe_dump(_plain(values)))
        (weights,) = (self.folder / "exp/training").glob("*.safetensors")
        torch.save(network_weights(weights), folder / "model.pth")
        return folder

    def theirs(self, **settings):
        """ESPnet2's own class, given the files of `export`."""
        folder, prefix = self.export(), TASKS[self.task].argument
        files = {
            f"{prefix}train_config": str(folder / "config.yaml"),
            f"{prefix}model_file": str(folder / "model.pth"),
        }
        return inference_class(self.task)(**files, **settings)

    def samples(self):
        return list(Dataset(self.source()["data_src_args"]["files"]))


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    """Return a function that trains a kind of model once."""
    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind) / "a 'b' recipe"
            folder.mkdir()
            with contextlib.chdir(folder):
                recipe = Recipe(folder, kind)
                assert recipe.train() == 0
            made[kind] = recipe
        return made[kind]

    return get


@pytest.fixture
def trained(request, trainings, monkeypatch):
    recipe = trainings(request.param)
    monkeypatch.chdir(recipe.folder)
    return recipe


def kinds(*names):
    return pytest.mark.parametrize("trained", names, indirect=True)


@kinds("transducer", "asr_transducer", "st", "mt")
def test_texts_of_infer_are_those_of_espnet2(trained):
    assert trained.infer() == 0
    hypotheses = trained.field("hyp")
    references = trained.field("ref")
    settings = {**SEARCH[trained.task], **({"ctc_weight": 0.0} if trained.task == "mt" else {})}
    theirs = trained.theirs(**settings)
    preprocess = task_class(trained.task).build_preprocess_fn(
        argparse.Namespace(**training_values(trained.task, "conf/train.yaml", {})), False
    )
    for sample in trained.samples():
        if trained.task == "mt":
            results = theirs(preprocess("", {"src_text": sample["src_text"]})["src_text"])
        else:
            results = theirs(sample["speech"])
        if trained.task == "asr_transducer":
            results = theirs.hypotheses_to_results(results)
        assert hypotheses[sample["utt_id"]] == results[0][0]
        assert references[sample["utt_id"]] == sample["text"]


@kinds("st")
def test_our_search_finds_the_translations_of_espnet2(trained):
    speech = [sample["speech"] for sample in trained.samples()]
    ours, theirs = trained.ours(), trained.ours(decoder="espnet2")
    assert (ours.decoder, theirs.decoder) == ("espnet3", "espnet2")
    for mine, other in zip(ours(speech), theirs(speech), strict=True):
        assert mine.text == other.text.replace("<sos/eos>", "")
        assert mine.score == pytest.approx(other.score, abs=1e-4)


@kinds("lm")
def test_perplexities_are_those_of_espnet2(trained):
    from espnet2.bin import lm_calc_perplexity

    assert trained.infer() == 0
    folder = trained.export()
    arguments = [
        "--data_path_and_name_and_type", "data/text,text,text",
        "--train_config", str(folder / "config.yaml"), "--model_file", str(folder / "model.pth"),
        "--output_dir", "exp/ppl", "--num_workers", "0", "--log_base", "2.718281828459045",
    ]  # fmt: skip
    with contextlib.redirect_stderr(io.StringIO()):
        lm_calc_perplexity.main(arguments)
    theirs = dict(read_scp("exp/ppl/utt2ppl"))
    found = {id: float(value) for id, value in trained.field("perplexity").items()}
    assert found.keys() == theirs.keys()
    for id, value in theirs.items():
        assert found[id] == pytest.approx(float(value), rel=1e-4)
    total = float(Path("exp/ppl/ppl").read_text())
    scores = [float(value) for value in trained.field("score").values()]
    counts = [int(value) for value in trained.field("n_tokens").values()]
    assert np.exp(-sum(scores) / sum(counts)) == pytest.approx(total, rel=1e-4)


@kinds("tts")
def test_speech_of_a_text_is_that_of_espnet2(trained):
    assert trained.infer() == 0
    ours = trained.ours(extra_outputs=["feat_gen", "duration"])
    theirs = trained.theirs(always_fix_seed=True, maxlenratio=1.0)
    for sample in trained.samples():
        samples, rate = soundfile.read(trained.field("wav")[sample["utt_id"]])
        found, expected = ours(text=sample["text"]), theirs(sample["text"])
        assert rate == 16000
        assert len(samples) == len(found["wav"]) == len(expected["wav"])
        np.testing.assert_allclose(found["feat_gen"], expected["feat_gen"].numpy(), atol=1e-5)


@kinds("enh")
def test_enhanced_speech_is_that_of_espnet2(trained):
    assert trained.infer() == 0
    theirs = trained.theirs()
    for sample in trained.samples():
        found, rate = soundfile.read(trained.field("enhanced")[sample["utt_id"]])
        (expected,) = theirs(sample["speech_mix"][None], fs=16000)
        assert (rate, len(found)) == (16000, len(sample["speech_mix"]))
        np.testing.assert_allclose(found, expected[0], atol=1e-4)


@kinds("spk")
def test_embeddings_are_those_of_espnet2(trained):
    assert trained.infer() == 0
    theirs = trained.theirs()
    for sample in trained.samples():
        found = np.load(trained.field("embedding")[sample["utt_id"]])
        expected = theirs(sample["speech"])
        np.testing.assert_allclose(found, expected.detach().numpy()[0], atol=1e-5)


@kinds("enh")
def test_workers_write_the_same_files(trained):
    assert trained.infer() == 0
    alone = {id: path.read_bytes() for id, path in trained.field("enhanced").items()}
    shutil.rmtree(trained.folder / "exp/training/inference")
    assert trained.infer("parallel.env=local", "parallel.n_workers=2") == 0
    assert {id: path.read_bytes() for id, path in trained.field("enhanced").items()} == alone


@kinds("slu")
def test_spoken_language_understanding_is_that_of_espnet2(trained):
    assert trained.infer() == 0
    theirs = trained.theirs(beam_size=2)
    for sample in trained.samples():
        assert trained.field("hyp")[sample["utt_id"]] == theirs(sample["speech"])[0][0]


@kinds("lm")
def test_validation_loss_is_the_mean_over_tokens_as_in_espnet2(trained):
    model = ESPnet2Model("lm", "conf/train.yaml")
    (weights,) = (trained.folder / "exp/training").glob("valid.loss.*.safetensors")
    model.load_state_dict(load_file(weights))
    model.eval()
    preprocess = ESPnet2Preprocessor("lm", "conf/train.yaml")
    items = [model(**PadCollate()([preprocess(sample)])) for sample in trained.samples()]
    losses, counts = zip(*[(float(one[0]), int(one[2])) for one in items], strict=True)
    assert len(set(counts)) > 1  # else any mean would do
    lines = (trained.folder / "exp/training/history.jsonl").read_text().splitlines()
    found = [json.loads(line)["values"].get("valid/loss") for line in lines]
    logged = min(one for one in found if one is not None)
    expected = np.average(losses, weights=counts)
    assert logged == pytest.approx(expected, rel=1e-5)
    assert logged != pytest.approx(np.mean(losses), rel=1e-5)


@kinds("lm")
def test_integers_are_padded_as_the_task_of_espnet2_pads_them(trained):
    model = ESPnet2Model("lm", "conf/train.yaml").eval()
    preprocess = ESPnet2Preprocessor("lm", "conf/train.yaml")
    samples = [preprocess(sample) for sample in trained.samples()]
    loss, _, weight = model(**PadCollate(int_pad=-1)(samples))
    ids, batch = ESPnet2Collate("lm", "conf/train.yaml")(samples)
    assert ids == ["utt0", "utt1", "utt2", "utt3"]
    expected, _, n_tokens = model.network(**batch)
    assert (float(loss), int(weight)) == (pytest.approx(float(expected)), int(n_tokens))


@kinds("mt")
def test_a_batch_that_lacks_a_name_is_told_with_the_line_to_write(trained):
    model = ESPnet2Model("mt", "conf/train.yaml")
    with pytest.raises(DataError, match=r"needs src_text, .* text.*files: \[\[PATH, src_text"):
        model(text=torch.ones(1, 2, dtype=torch.long), text_lengths=torch.tensor([2]))
    with pytest.raises(DataError, match=r"src_text \(a text\).*ESPnet2Preprocessor, task: mt"):
        model(src_text=["a b"])


@kinds("tts")
def test_options_and_inputs_that_a_task_does_not_have_are_refused(trained):
    with pytest.raises(ConfigError, match="decoding the task tts has no such option"):
        trained.ours(beam_size=3)
    with pytest.raises(ConfigError, match="our search is none for the task tts"):
        trained.ours(decoder="espnet3")
    model = trained.ours()
    with pytest.raises(ConfigError, match="Write: input_key: text"):
        model(speech_mix=np.zeros(16000))
    with pytest.raises(ConfigError, match="normalize: null"):
        ESPnet2Model("tts", token_list="data/tokens.txt")
