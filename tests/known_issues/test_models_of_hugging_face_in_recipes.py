"""The documented block for a model of Hugging Face decoded a batch, and then refused its result.

A misspelt argument of it was found by the workers only, and bars of transformers were in each log.
"""

import json

import numpy as np
import pytest
import soundfile
import transformers

from espnet3.systems.asr.huggingface_inference import HuggingFaceSpeech2Text
from espnet3.systems.base.system import BaseSystem
from tests.helpers.tones_recipe import call
from tests.helpers.training_recipe import RUN

LETTERS = ["<pad>", "<unk>", "|", *"abcdefgh"]
WORDS = ("--stages", "infer", "measure", "--inference_config", "conf/inference.yaml",
         "--metrics_config", "conf/metrics.yaml")  # fmt: skip
INFERENCE = """\
dataset:
  test:
    - {name: few, data_src: jsonl, data_src_args: {path: "${data_dir}/few.jsonl"}}
model:
  _target_: espnet3.systems.asr.huggingface_inference.HuggingFaceSpeech2Text
  pretrained: MODEL
input_key: speech
batch_size: 2
"""
METRICS = "metrics: [{metric: {_target_: espnet3.systems.asr.metrics.cer.CER}}]\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a model")
    (folder / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(LETTERS)}))
    config = transformers.Wav2Vec2Config(
        vocab_size=len(LETTERS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, conv_dim=(8, 8), conv_kernel=(10, 8), conv_stride=(5, 8),
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, pad_token_id=0,
    )  # fmt: skip
    transformers.Wav2Vec2ForCTC(config).save_pretrained(folder)
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    extractor = transformers.Wav2Vec2FeatureExtractor()
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture
def recipe(tmp_path, model):
    files = {
        "run.py": RUN,
        "conf/inference.yaml": INFERENCE.replace("MODEL", str(model)),
        "conf/metrics.yaml": METRICS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "data").mkdir()
    rows = []
    for i in range(3):
        audio = np.random.default_rng(i).normal(0, 0.1, 4000)
        soundfile.write(tmp_path / "data" / f"{i}.wav", audio, 16000)
        rows.append(json.dumps({"utt_id": f"u{i}", "audio": f"{i}.wav", "text": "a b"}))
    (tmp_path / "data" / "few.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_documented_block_decodes_and_scores(recipe, model, capfd):
    assert call(recipe, *WORDS, system=BaseSystem) == 0
    told = capfd.readouterr()
    assert "Loading weights" not in told.out + told.err
    folder = recipe / "exp" / "inference"
    assert json.loads((folder / "metrics.json").read_text())["CER"]["few"]["n_utterances"] == 3
    audio, _ = soundfile.read(recipe / "data" / "0.wav", dtype="float32")
    hypotheses = dict(
        line.partition(" ")[::2] for line in (folder / "few" / "hyp.scp").read_text().splitlines()
    )
    assert hypotheses["u0"] == HuggingFaceSpeech2Text(str(model))(audio).text


@pytest.mark.parametrize(("key", "told"), [("n_bset", "n_best"), ("pretraned", "pretrained")])
def test_misspelt_argument_is_refused_before_anything_starts(recipe, capsys, key, told):
    assert call(recipe, *WORDS, f"model.{key}=3", system=BaseSystem) == 1
    assert f"Did you mean '{told}'?" in capsys.readouterr().err
    assert not (recipe / "exp").exists()
