"""Settings that were found late or told badly: now with key and place, before `exp/` exists."""

import os

import pytest

from espnet3.components.decoding.ctc_beam import PrefixBeamCTC
from espnet3.components.decoding.joint_beam import JointBeam
from espnet3.config.instantiate import instantiate
from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.systems.asr.inference_checks import check_recognizer
from espnet3.systems.base.checks import check_targets
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.inference_config import load_inference_config


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "exp").is_dir()


def inference(tmp_path, *lines):
    file = tmp_path / "inference.yaml"
    file.write_text("\n".join(["inference_dir: exp/inference", *lines]) + "\n")
    return load_config(file)


@pytest.mark.parametrize(
    "line",
    ["batch_seconds: .inf", "batch_seconds: .nan", "batch_seconds: -1", "batch_seconds: -.inf",
     "batch_seconds: 0", "batch_size: .inf", "batch_size: 0", "batch_size: -3", "batch_size: 1.5",
     "batch_size: true"],
)  # fmt: skip
def test_numbers_that_are_none(tmp_path, line):
    with pytest.raises(ConfigError, match=rf"{line.split(':')[0]}.*inference\.yaml:2"):
        load_inference_config(inference(tmp_path, line))


@pytest.mark.parametrize(
    "names",
    ['["../../hyp"]', '["a/b"]', '["/hyp"]', '[""]', '["."]', '[".."]', '[" "]', '["a\\\\b"]',
     '["a\\nb"]', "[hyp, ref, hyp]", '["~"]', f"[{'a' * 300}]"],
)  # fmt: skip
def test_names_of_fields_that_are_none(tmp_path, names):
    with pytest.raises(ConfigError, match=r"output_keys.*inference\.yaml:2"):
        load_inference_config(inference(tmp_path, f"output_keys: {names}"))


@pytest.mark.parametrize("name", ["../x", "done", "Done", "split.0", "logs", "a/b", ""])
def test_names_of_artifacts_that_are_none(tmp_path, name):
    with pytest.raises(ConfigError, match=r"output_artifacts.*inference\.yaml:2"):
        load_inference_config(inference(tmp_path, f'output_artifacts: {{"{name}": {{type: npy}}}}'))


def test_an_ending_that_is_a_path(tmp_path):
    line = "output_artifacts: {a: {writer: {_target_: x.y}, suffix: /../../b}}"
    with pytest.raises(ConfigError, match=r"suffix.*inference\.yaml:2"):
        load_inference_config(inference(tmp_path, line))


def test_honest_names_are_taken(tmp_path):
    line = "output_keys: [hyp, ref, score, nbest, 単語, a-b, a.b]"
    assert load_inference_config(inference(tmp_path, line)).output_keys


@pytest.mark.parametrize("target", ["os.path", "espnet3.systems.asr.model"])
def test_a_module_as_target(tmp_path, target):
    loaded = inference(tmp_path, "model:", f"  _target_: {target}")
    with pytest.raises(ConfigError, match=r"model\._target_.*inference\.yaml:3.*is a module"):
        check_targets(loaded, None)
    with pytest.raises(ConfigError, match=r"model\._target_.*is a module"):
        instantiate(loaded.config.model, key="model", loaded=loaded)


def test_a_target_that_cannot_be_called(tmp_path):
    loaded = inference(tmp_path, "model:", "  _target_: os.sep")
    with pytest.raises(ConfigError, match=r"model\._target_.*:3.*not callable"):
        check_targets(loaded, None)
    with pytest.raises(ConfigError, match=r"model\._target_.*not callable"):
        instantiate(loaded.config.model, key="model", loaded=loaded)


@pytest.mark.parametrize("key", ["inference_dir", "exp_dir", "stats_dir", "data_dir", "recipe_dir"])
@pytest.mark.parametrize("below", ["", "/below/it"])
def test_a_folder_that_is_a_file(tmp_path, key, below):
    (tmp_path / "file").touch()
    file = tmp_path / "conf.yaml"
    file.write_text(f"{key}: file{below}\n")
    with pytest.raises(ConfigError, match=rf"{key} .*conf\.yaml:1.*a file"):
        load_configs({"inference": [file]})


def test_a_folder_that_is_a_dangling_link(tmp_path):
    os.symlink("nowhere", tmp_path / "link")
    (tmp_path / "conf.yaml").write_text("inference_dir: link\n")
    with pytest.raises(ConfigError, match=r"inference_dir .*conf\.yaml:1.*leads nowhere"):
        load_configs({"inference": [tmp_path / "conf.yaml"]})


@pytest.mark.parametrize("value", ["a\\nb", "a\\tb", "a\\0b", "a\\eb"])
@pytest.mark.parametrize("key", ["inference_dir", "exp_dir", "exp_tag", "recipe_dir"])
def test_control_characters_in_a_path(tmp_path, key, value):
    (tmp_path / "conf.yaml").write_text(f'{key}: "{value}"\n')
    with pytest.raises(ConfigError, match=rf"{key}.*conf\.yaml:1"):
        load_configs({"inference": [tmp_path / "conf.yaml"]})


@pytest.mark.parametrize("value", ["../x", "/x", "a/../../x"])
def test_a_tag_that_leads_out(tmp_path, value):
    (tmp_path / "conf.yaml").write_text(f"exp_tag: {value}\n")
    with pytest.raises(ConfigError, match=r"exp_tag.*conf\.yaml:1"):
        load_configs({"inference": [tmp_path / "conf.yaml"]})


@pytest.mark.parametrize(
    "line",
    ["window_seconds: .inf", "window_seconds: .nan", "overlap_seconds: .nan", "n_best: .inf",
     "decoder: {_target_: espnet3.components.decoding.joint_beam.JointBeam, lm_weight: .inf}",
     "decoder: {_target_: espnet3.components.decoding.ctc_beam.PrefixBeamCTC, ngram_weight: .nan}"],
)  # fmt: skip
def test_numbers_of_a_recogniser(tmp_path, line):
    target = "_target_: espnet3.systems.asr.inference.Speech2Text"
    loaded = inference(tmp_path, "model:", f"  {target}", "  weights: x", f"  {line}")
    with pytest.raises(ConfigError, match=r"model\..*inference\.yaml:5"):
        check_recognizer(loaded)


def test_decoders_refuse_numbers_that_are_none():
    for decoder, settings in (
        (JointBeam, {"lm_weight": float("inf")}),
        (JointBeam, {"beam_size": float("nan")}),
        (PrefixBeamCTC, {"beam_size": float("nan")}),
        (PrefixBeamCTC, {"n_best": 1.5}),
    ):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            decoder(**settings)
