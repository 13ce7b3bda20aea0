"""Packed models: what is in them, that they are the same each time, and that they run no code."""

import io
import json
import os
import shutil
import tarfile
import zipfile

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

from espnet3.config.load import load_config
from espnet3.config.trust import PackedModelError
from espnet3.errors import ConfigError, RunFolderError
from espnet3.systems.asr.inference import Speech2Text
from espnet3.systems.asr.publication import check_pack_model, describe_pack_model, pack_model
from espnet3.systems.base.context import load_configs
from tests.helpers.recognizer_parts import (
    DECODING,
    MODELS,
    RATE,
    WEIGHTS,
    make_experiment,
    make_recipe,
    model_block,
    noise,
)

INFERENCE = {
    "model": {
        "_target_": "espnet3.systems.asr.inference.Speech2Text",
        "weights": "exp/training/x.safetensors",
        "decoder": {"_target_": f"{DECODING}.ctc_beam.PrefixBeamCTC", "beam_size": 4},
        "n_best": 2,
    },
    "inference_dir": "exp/training/inference",
    "api_key": "sesame-open",
}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return the folder of a recipe that is trained and decoded, and go there."""
    folder = make_recipe(tmp_path / "my corpus/asr")
    (folder / "exp/training/config").mkdir()
    OmegaConf.save(OmegaConf.create(INFERENCE), folder / "exp/training/config/infer.yaml")
    monkeypatch.chdir(folder)
    return folder


def load(*overrides):
    files = {"training": ["conf/training.yaml"], "publication": ["conf/publication.yaml"]}
    return load_configs(files, overrides).publication


def files_in(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def repack(folder, change):
    """Change a packed config as one who has access to all files would, checksums included."""
    from espnet3.systems.asr.trained_model import sha256

    change(folder)
    meta = OmegaConf.load(folder / "meta.yaml")
    meta.sha256 = {name: sha256(folder / name) for name in meta.sha256}
    OmegaConf.save(meta, folder / "meta.yaml")


def set_key(file, key, value):
    def change(folder):
        config = OmegaConf.load(folder / file)
        OmegaConf.update(config, key, value, force_add=True)
        OmegaConf.save(config, folder / file)

    return change


def test_the_packed_model_says_what_the_experiment_says(recipe, tmp_path, monkeypatch):
    expected = Speech2Text.from_experiment("exp/training")(noise()).text
    pack_model(load())
    shutil.move(recipe / "exp/training/packed", tmp_path / "elsewhere")
    archive = shutil.move(recipe / "exp/training/tiny_asr.tar.gz", tmp_path)
    shutil.rmtree(recipe)
    monkeypatch.chdir(tmp_path)
    greedy = Speech2Text.from_packed("elsewhere", decoder=None, n_best=1)
    assert greedy(noise()).text == expected
    with zipfile.ZipFile("model.zip", "w") as zipped:
        for name in files_in(tmp_path / "elsewhere"):
            zipped.write(tmp_path / "elsewhere" / name, name)
    packed_beam = Speech2Text.from_packed(archive)
    assert len(packed_beam(noise()).n_best) == 2  # as it was packed
    assert packed_beam(noise()).text == Speech2Text.from_packed("model.zip")(noise()).text
    by_weights = Speech2Text(tmp_path / "elsewhere/weights.safetensors")
    assert by_weights(noise()).text == expected


def test_all_that_others_need_is_in_it_and_no_secret(recipe):
    (recipe / "exp/training/inference").mkdir()
    numbers = {"rate": 12.5, "measured_from": {"files": [{"path": "/home/me"}], "settings": {}}}
    metrics = {"WER": {"dev": numbers}}
    (recipe / "exp/training/inference/metrics.json").write_text(json.dumps(metrics))
    folder = pack_model(load())
    assert files_in(folder) == [
        "README.md", "conf/inference.yaml", "conf/training.yaml", "meta.yaml", "metrics.json",
        "tokenizer/tokenizer.json", "tokenizer/tokens.txt", "weights.safetensors",
    ]  # fmt: skip
    whole = "".join(p.read_text() for p in folder.rglob("*.[myj]*"))
    assert "sesame-open" not in whole
    assert "/home/me" not in whole
    assert str(recipe) not in whole
    card = (folder / "README.md").read_text()
    front = OmegaConf.create(card.split("---\n")[1])
    assert (front.license, front.language) == ("cc-by-4.0", ["en"])
    assert front.pipeline_tag == "automatic-speech-recognition"
    assert "| dev | 12.50 |" in card
    assert "Noise, made by us." in card
    assert json.loads((folder / "metrics.json").read_text())["WER"]["dev"]["rate"] == 12.5


def test_the_same_input_gives_the_same_bytes(recipe):
    archive = recipe / "exp/training/tiny_asr.tar.gz"
    pack_model(load())
    first = archive.read_bytes()
    os.utime(recipe / "exp/training" / WEIGHTS, (1, 1))
    pack_model(load())
    assert archive.read_bytes() == first
    assert not list((recipe / "exp/training").glob(".*"))
    with tarfile.open(archive) as tar:
        assert {name.split("/")[0] for name in tar.getnames()} == {"tiny_asr"}


def test_a_foreign_folder_is_not_replaced(recipe):
    (recipe / "precious").mkdir()
    (recipe / "precious/file").touch()
    with pytest.raises(RunFolderError, match=r"pack.output_dir=FOLDER"):
        pack_model(load("pack.output_dir=precious"))
    assert files_in(recipe / "precious") == ["file"]
    assert not list(recipe.glob(".*"))


def test_a_checkpoint_is_packed_as_safetensors(recipe):
    weights = load_file(recipe / "exp/training" / WEIGHTS)
    (recipe / "exp/training" / WEIGHTS).unlink()
    state = {f"model.{name}": value for name, value in weights.items()}
    torch.save({"state_dict": state}, recipe / "exp/training/last.ckpt")
    assert "weights: exp/training/last.ckpt" in describe_pack_model(load())
    packed = load_file(pack_model(load()) / "weights.safetensors")
    assert all(torch.equal(packed[name], value) for name, value in weights.items())


def test_a_language_model_and_statistics_travel_along(recipe, tmp_path, monkeypatch):
    make_experiment(
        recipe,
        {
            "_target_": "espnet3.systems.asr.language_model.LanguageModel",
            "tokenizer": "./data/tokenizer",
            "hidden": 8,
            "n_layers": 1,
        },
        name="lm",
    )
    set_key("exp/training/config/infer.yaml", "model.decoder", {
        "_target_": f"{DECODING}.joint_beam.JointBeam", "beam_size": 2, "ctc_weight": 1.0,
        "lm": "./exp/lm", "lm_weight": 0.5,
    })(recipe)  # fmt: skip
    from espnet3.components.decoding.joint_beam import JointBeam

    decoder = JointBeam(beam_size=2, ctc_weight=1.0, lm="./exp/lm", lm_weight=0.5)
    expected = Speech2Text.from_experiment("exp/training", decoder=decoder)(noise(0.5))
    pack_model(load())
    archive = shutil.move(recipe / "exp/training/tiny_asr.tar.gz", tmp_path)
    shutil.rmtree(recipe)
    monkeypatch.chdir(tmp_path)
    result = Speech2Text.from_packed(archive)(noise(0.5))
    assert result.text == expected.text
    assert result.score == pytest.approx(expected.score)
    assert "lm" in result.n_best[0].scores


EVIL = "espnet3.components.models.log_mel.torch.os.system"


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("conf/training.yaml", "model.frontend._target_", "os.system"),
        ("conf/training.yaml", "model.frontend._target_", "subprocess.Popen"),
        ("conf/training.yaml", "model.frontend._target_", EVIL),
        ("conf/training.yaml", "model.frontend._target_", "torch.nn.modules.module.torch.load"),
        (
            "conf/training.yaml",
            "model.frontend._target_",
            "espnet3.systems.asr.inference.Speech2Text",
        ),
        ("conf/training.yaml", "model.encoder", {"x": [{"_target_": "builtins.eval"}]}),
        ("conf/training.yaml", "model.tokenizer", "../../etc"),
        ("conf/training.yaml", "model.tokenizer", "/etc"),
        ("conf/inference.yaml", "model.decoder._target_", "src.decoder.Mine"),
        ("conf/inference.yaml", "model.decoder.lm_loader", "os.system"),
    ],
)
def test_configs_that_would_run_foreign_code_are_refused(recipe, file, key, value):
    folder = pack_model(load())
    repack(folder, set_key(file, key, value))
    with pytest.raises(PackedModelError, match=key.replace("._target_", "")):
        Speech2Text.from_packed(folder)


def test_interpolations_and_further_files_are_refused(recipe):
    folder = pack_model(load())
    text = (folder / "conf/training.yaml").read_text()
    trick = text.replace("tokenizer: tokenizer", "tokenizer: '${oc.env:HOME}'")
    repack(folder, lambda one: (one / "conf/training.yaml").write_text(trick))
    with pytest.raises(PackedModelError, match="an interpolation"):
        Speech2Text.from_packed(folder)
    repack(folder, lambda one: (one / "conf/training.yaml").write_text(text))
    (folder / "files").mkdir()
    (folder / "files/config.yaml").write_text("defaults: [other]\n")
    with pytest.raises(PackedModelError, match="defaults list"):
        Speech2Text.from_packed(folder)


def test_a_model_of_the_recipe_loads_only_with_trust(recipe, monkeypatch, caplog):
    (recipe / "src").mkdir()
    code = "from espnet3.systems.asr.model import ASRModel\nclass Mine(ASRModel): pass\n"
    (recipe / "src/own_model_of_test.py").write_text(code)
    monkeypatch.syspath_prepend(recipe / "src")
    set_key("exp/training/config.yaml", "model._target_", "own_model_of_test.Mine")(recipe)
    folder = pack_model(load())
    assert "only with trust_remote_code=True" in caplog.text
    with pytest.raises(PackedModelError, match=r"model._target_ .*trust_remote_code=True"):
        Speech2Text.from_packed(folder)
    trusted = Speech2Text.from_packed(folder, trust_remote_code=True)
    assert type(trusted.model).__name__ == "Mine"


def test_damage_is_found(recipe, tmp_path):
    folder = pack_model(load())
    weights = folder / "weights.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-4] + b"abcd")
    with pytest.raises(PackedModelError, match=r"weights.safetensors of .* is damaged"):
        Speech2Text.from_packed(folder)
    weights.unlink()
    with pytest.raises(PackedModelError, match="is missing"):
        Speech2Text.from_packed(folder)
    archive = recipe / "exp/training/tiny_asr.tar.gz"
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(PackedModelError, match="cannot be extracted"):
        Speech2Text.from_packed(archive)
    with pytest.raises(PackedModelError, match="does not exist"):
        Speech2Text.from_packed("nothing.tar.gz")
    with pytest.raises(PackedModelError, match="from_experiment"):
        Speech2Text.from_packed(recipe / "exp/training")


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "a/../../evil.txt"])
def test_archives_that_lead_out_of_their_folder_are_refused(tmp_path, name):
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 4
        tar.addfile(entry, io.BytesIO(b"evil"))
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as zipped:
        zipped.writestr(name, "evil")
    for archive in ("evil.tar.gz", "evil.zip"):
        with pytest.raises(PackedModelError, match="leads out of its folder"):
            Speech2Text.from_packed(tmp_path / archive)


def test_links_in_archives_are_refused(tmp_path):
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("meta.yaml")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    with pytest.raises(PackedModelError, match="a link or a device"):
        Speech2Text.from_packed(tmp_path / "evil.tar.gz")


@pytest.mark.parametrize("name", ["bomb.tar.gz", "bomb.zip"])
def test_archives_that_would_fill_the_disk_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr("espnet3.systems.asr.packed_archive._ALWAYS_ALLOWED", 100_000)
    zeros = bytes(1_000_000)
    if name.endswith("zip"):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("meta.yaml", zeros)
    else:
        with tarfile.open(tmp_path / name, "w:gz") as tar:
            entry = tarfile.TarInfo("meta.yaml")
            entry.size = len(zeros)
            tar.addfile(entry, io.BytesIO(zeros))
    with pytest.raises(PackedModelError, match=r"made to fill a disk.*from elsewhere"):
        Speech2Text.from_packed(tmp_path / name)


def test_values_of_another_kind_are_told(recipe):
    folder = pack_model(load())
    repack(folder, set_key("conf/inference.yaml", "model.window_seconds", "three"))
    with pytest.raises(ConfigError, match="must be a number"):
        Speech2Text.from_packed(folder)
    (folder / "meta.yaml").write_text("format: 1\nsha256: [a]\n")
    with pytest.raises(PackedModelError, match=r"has no weights.safetensors in its meta.yaml"):
        Speech2Text.from_packed(folder)


def test_an_archive_of_another_name_is_told_from_a_missing_one(recipe, tmp_path):
    pack_model(load())
    renamed = (recipe / "exp/training/tiny_asr.tar.gz").rename(tmp_path / "model.bin")
    with pytest.raises(PackedModelError, match=r"file of an unknown kind.*ends in \.tar\.gz"):
        Speech2Text.from_packed(renamed)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("pack.licence=mit", "license"),
        ("pack.name=a/b", "name: my_corpus_asr"),
        ("pack.language=English", "Write: en"),
        ("pack.archive=maybe", "pack.archive"),
        ("pack.inference_config=conf/nothing.yaml", "does not exist"),
    ],
)
def test_mistakes_in_the_config_are_told_first(recipe, override, problem):
    with pytest.raises(ConfigError, match=problem):
        check_pack_model(load(override))


def test_without_a_training_it_says_how_to_name_one(recipe):
    alone = load_configs({"publication": ["conf/publication.yaml"]}).publication
    with pytest.raises(RunFolderError, match=r"--training_config conf/training.yaml"):
        pack_model(alone)
    with pytest.raises(ConfigError, match=r"no\.safetensors.*set in.*There are"):
        pack_model(load("pack.weights=exp/training/no.safetensors"))


def test_statistics_are_in_the_weights(tmp_path, monkeypatch):
    import numpy as np

    recipe = tmp_path / "asr"
    stats = recipe / "exp/stats/train/feats_stats.npz"
    stats.parent.mkdir(parents=True)
    np.savez(stats, count=100, sum=np.zeros(20), sum_square=np.full(20, 400.0))
    block = model_block(
        normalize={
            "_target_": f"{MODELS}.normalization.GlobalNormalization",
            "stats_file": "./exp/stats/train/feats_stats.npz",
        }
    )
    exp_dir = make_experiment(recipe, block)
    expected = Speech2Text.from_experiment(exp_dir)(noise()).text
    (recipe / "conf").mkdir()
    (recipe / "conf/training.yaml").write_text("exp_tag: training\n")
    (recipe / "conf/publication.yaml").write_text("pack: {archive: false}\n")
    stats.unlink()
    monkeypatch.chdir(recipe)
    folder = pack_model(load())
    assert load_config(folder / "meta.yaml").config.name == "tmp_asr_training".replace(
        "tmp", "".join(c if c.isalnum() or c in "._-" else "-" for c in tmp_path.name)
    )
    assert Speech2Text.from_packed(folder)(noise(), sample_rate=RATE).text == expected
