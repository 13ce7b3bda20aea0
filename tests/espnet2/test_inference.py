"""`ESPnet2Inference` in the stages of a recipe, and what it says of wrong files."""

import shutil
import warnings

import pytest
import torch
import yaml

from espnet3.cli.recipe import run_recipe
from espnet3.errors import ConfigError, RunFolderError
from espnet3.io.scp import read_scp
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.espnet2.inference import ESPnet2Inference
from tests.helpers.espnet2_models import noise, write_data

INFERENCE = """
dataset:
  test: [{{name: noise, data_src: kaldi, data_src_args: {{path: data/noise}}}}]
model:
  _target_: espnet3.systems.espnet2.inference.ESPnet2Inference
  task: asr
  config: "{folder}/config.yaml"
  weights: "{folder}/model.pth"
  beam_size: 3
  ctc_weight: 0.3
  maxlenratio: 0.5
input_key: speech
output_fn: espnet3.systems.espnet2.inference.output_fn
batch_size: 3
"""


@pytest.fixture
def recipe(tmp_path, models, monkeypatch):
    """A recipe with five recordings."""
    folder = tmp_path / "recipe"
    write_data(folder / "data/noise")
    (folder / "conf").mkdir()
    text = INFERENCE.format(folder=models["e_branchformer"])
    (folder / "conf/inference.yaml").write_text(text)
    (folder / "conf/metrics.yaml").write_text(
        "metrics: [{metric: {_target_: espnet3.systems.asr.metrics.wer.WER}}]\n"
    )
    monkeypatch.chdir(folder)
    return folder


def run(recipe, *words):
    stages = ["--stages", "infer", "measure", "--inference_config", "conf/inference.yaml"]
    metrics = ["--metrics_config", "conf/metrics.yaml"]
    return run_recipe(ASRSystem, [*stages, *metrics, *words], recipe_dir=recipe)


def hypotheses(recipe, name="inference"):
    (path,) = (recipe / "exp").glob(f"**/{name}/noise/hyp.scp")
    return dict(read_scp(path))


@pytest.fixture
def expected(models):
    """The texts of ESPnet2's own search, by utterance."""
    folder = models["e_branchformer"]
    theirs = ESPnet2Inference(
        "asr", folder / "config.yaml", folder / "model.pth",
        beam_size=3, ctc_weight=0.3, maxlenratio=0.5, decoder="espnet2",
    )  # fmt: skip
    return {f"utt{i}": theirs(one).text.replace("<sos/eos>", "") for i, one in enumerate(noise())}


def test_infer_and_measure_in_this_process(recipe, expected):
    assert run(recipe) == 0
    assert hypotheses(recipe) == expected


def test_infer_on_two_workers(recipe, expected):
    assert run(recipe, "parallel.env=local", "parallel.n_workers=2") == 0
    assert hypotheses(recipe) == expected


def build(folder, **settings):
    return ESPnet2Inference("asr", folder / "config.yaml", folder / "model.pth", **settings)


@pytest.fixture
def model_copy(tmp_path, models):
    shutil.copytree(models["e_branchformer"], tmp_path / "model")
    return tmp_path / "model"


def change(folder, **keys):
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys}))


def test_keys_of_another_version_are_told(model_copy, caplog):
    change(model_copy, use_new_thing=True, version="202301")
    build(model_copy)
    assert "of espnet 202301, has keys that espnet" in caplog.text
    assert "use_new_thing" in caplog.text


def test_options_that_this_version_does_not_take_are_told(model_copy):
    change(model_copy, version="202301")
    config = yaml.safe_load((model_copy / "config.yaml").read_text())
    change(model_copy, encoder_conf={**config["encoder_conf"], "no_such_option": 1})
    with pytest.raises(ConfigError, match=r"espnet 202301 wrote: .*no_such_option"):
        build(model_copy)


def test_keys_that_an_older_version_lacked_get_their_defaults(model_copy):
    path = model_copy / "config.yaml"
    config = yaml.safe_load(path.read_text())
    del config["aux_ctc_tasks"], config["preencoder"], config["use_adapter"]
    path.write_text(yaml.safe_dump(config))
    assert build(model_copy).decoder == "espnet3"


def test_weights_of_another_model_are_told(model_copy):
    weights = torch.load(model_copy / "model.pth")
    del weights["ctc.ctc_lo.bias"]
    torch.save(weights, model_copy / "model.pth")
    with pytest.raises(RunFolderError, match=r"ctc\.ctc_lo\.bias"):
        build(model_copy)


def test_a_token_list_in_a_file_is_found_from_the_recipe(model_copy):
    tokens = yaml.safe_load((model_copy / "config.yaml").read_text())["token_list"]
    (model_copy.parent / "tokens.txt").write_text("\n".join(tokens) + "\n")
    change(model_copy, token_list="tokens.txt")
    assert build(model_copy).tokens == tuple(tokens)
    (model_copy.parent / "tokens.txt").unlink()
    with pytest.raises(ConfigError, match="token_list: PATH"):
        build(model_copy)


def test_other_rates_are_resampled(models):
    model = build(models["e_branchformer"], beam_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert model(noise(1)[0], sample_rate=8000).text
