"""Models that ESPnet2 packed, such as those of espnet_model_zoo: opened as zip or folder."""

import contextlib
import io
import os
import zipfile

import pytest
import torch
import yaml

from espnet3.config.trust import PackedModelError
from espnet3.errors import ConfigError
from espnet3.systems.espnet2.inference import ESPnet2Inference
from tests.helpers.espnet2_models import TOKENS, noise


class Something:
    """No tensor."""


@pytest.fixture(scope="module")
def packed(models, tmp_path_factory):
    """A recogniser with a language model, packed by ESPnet2's own program."""
    from espnet2.bin import pack

    folder = tmp_path_factory.mktemp("packed")
    files = {
        "--asr_train_config": models["e_branchformer"] / "config.yaml",
        "--asr_model_file": models["e_branchformer"] / "model.pth",
        "--lm_train_config": models["transformer"] / "config.yaml",
        "--lm_file": models["transformer"] / "model.pth",
    }
    # As in a recipe: packed paths are those that were given.
    top = models["transformer"].parents[1]
    words = [word for key, path in files.items() for word in (key, os.path.relpath(path, top))]
    with contextlib.chdir(top), contextlib.redirect_stdout(io.StringIO()):
        pack.main(["asr", "--outpath", str(folder / "model.zip"), *words])
    return folder / "model.zip"


@pytest.fixture
def unpacked(packed, tmp_path):
    with zipfile.ZipFile(packed) as opened:
        opened.extractall(tmp_path / "model")
    return tmp_path / "model"


def change(folder, name, **values):
    path = folder / name
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))


def config_in(folder):
    return yaml.safe_load((folder / "meta.yaml").read_text())["yaml_files"]["asr_train_config"]


def test_a_zip_is_decoded_with_the_language_model_in_it(packed, models):
    settings = {"beam_size": 3, "ctc_weight": 0.3, "lm_weight": 0.5}
    folder, lm = models["e_branchformer"], models["transformer"]
    expected = ESPnet2Inference(
        "asr", folder / "config.yaml", folder / "model.pth",
        lm_train_config=lm / "config.yaml", lm_file=lm / "model.pth", **settings,
    )  # fmt: skip
    found = ESPnet2Inference("asr", packed_model=packed, **settings)
    speech = noise(3)
    for one, other in zip(found(speech), expected(speech), strict=True):
        assert (one.text, one.score) == (other.text, pytest.approx(other.score, abs=1e-5))
        assert "lm" in one.n_best[0].scores
    alone = ESPnet2Inference("asr", packed_model=packed, **{**settings, "lm_weight": 0.0})
    assert "lm" not in alone(speech[0]).n_best[0].scores


def test_files_of_a_folder_are_found_inside_of_it_alone(unpacked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens.txt").write_text("\n".join(TOKENS) + "\n")
    change(unpacked, config_in(unpacked), token_list="tokens.txt")
    with pytest.raises(ConfigError, match="the only folder that a packed model may read"):
        ESPnet2Inference("asr", packed_model=unpacked)
    change(unpacked, config_in(unpacked), token_list=str(tmp_path / "tokens.txt"))
    with pytest.raises(ConfigError, match="the only folder that a packed model may read"):
        ESPnet2Inference("asr", packed_model=unpacked)
    (tmp_path / "tokens.txt").rename(unpacked / "tokens.txt")
    change(unpacked, config_in(unpacked), token_list="tokens.txt")
    assert ESPnet2Inference("asr", packed_model=unpacked).tokens == tuple(TOKENS)


def test_weights_with_objects_are_refused_unless_they_are_trusted(unpacked):
    name = yaml.safe_load((unpacked / "meta.yaml").read_text())["files"]["asr_model_file"]
    weights = torch.load(unpacked / name)
    torch.save({"model": weights, "more": Something()}, unpacked / name)
    with pytest.raises(ConfigError, match="trust_remote_code: true"):
        ESPnet2Inference("asr", packed_model=unpacked)
    trusted = ESPnet2Inference("asr", packed_model=unpacked, trust_remote_code=True)
    assert trusted(noise(1)[0]).text is not None


def test_another_task_is_told_with_what_is_there(packed):
    with pytest.raises(PackedModelError, match=r"no st_train_config, but asr_train_config.*task:"):
        ESPnet2Inference("st", packed_model=packed)
