"""The snippets of docs/asr-inference.md run as printed, on a small recogniser."""

import re
import shutil
from pathlib import Path

import soundfile
import yaml

from espnet3.systems.asr.inference import Speech2Text
from espnet3.systems.asr.inference_checks import check_recognizer
from espnet3.systems.asr.publication import PublicationConfig, pack_model
from espnet3.systems.base.context import load_configs
from tests.helpers.recognizer_parts import RATE, make_recipe, noise

PAGE = (Path(__file__).parents[2] / "docs/asr-inference.md").read_text()


def snippets(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_python(tmp_path, monkeypatch, capsys):
    recipe = make_recipe(tmp_path / "asr")
    monkeypatch.chdir(recipe)
    soundfile.write("speech.wav", noise(), RATE)
    first, second, packed, _ = snippets("python")
    names = {"samples": noise(3.0)}
    exec(first + second, names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == Speech2Text.from_experiment("exp/training")("speech.wav").text
    assert len(printed) == 1 + 5 + len(names["result"].words)

    (recipe / "conf/publication.yaml").write_text(snippets("yaml")[1])
    files = {"training": ["conf/training.yaml"], "publication": ["conf/publication.yaml"]}
    pack_model(load_configs(files).publication)
    shutil.move("exp/training/digits_asr.tar.gz", ".")
    exec(packed, names)
    assert names["model"]("speech.wav").text == printed[0]


def test_yaml(tmp_path, monkeypatch):
    monkeypatch.chdir(make_recipe(tmp_path / "asr"))
    infer, publication, *huggingface = snippets("yaml")
    Path("conf/inference.yaml").write_text(infer)
    files = {"training": ["conf/training.yaml"], "inference": ["conf/inference.yaml"]}
    check_recognizer(load_configs(files).inference)
    assert PublicationConfig(**yaml.safe_load(publication)).upload.private
    from espnet3.config.targets import check_arguments

    assert len(huggingface) == 2  # decoded as it is, and fine-tuned
    for text in huggingface:
        block = yaml.safe_load(text)["model"]
        check_arguments("model", block["_target_"], block)
