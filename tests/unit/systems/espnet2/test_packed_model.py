"""Packed models of ESPnet2 whose names lead out of their folder, or to nothing."""

import zipfile

import pytest
import yaml

from espnet3.config.trust import PackedModelError
from espnet3.errors import ConfigError
from espnet3.systems.espnet2.inference import ESPnet2Inference
from espnet3.systems.espnet2.packed_model import open_packed


def write_packed(folder, config="exp/asr/config.yaml", weights="exp/asr/model.pth"):
    (folder / "exp/asr").mkdir(parents=True)
    (folder / "exp/asr/config.yaml").write_text("token_list: [a]\n")
    (folder / "exp/asr/model.pth").touch()
    meta = {"yaml_files": {"asr_train_config": config}, "files": {"asr_model_file": weights}}
    (folder / "meta.yaml").write_text(yaml.safe_dump(meta))
    return folder


def test_a_folder_is_opened(tmp_path):
    found = open_packed(write_packed(tmp_path / "a 'b'"), "asr")
    assert found.config == tmp_path / "a 'b'/exp/asr/config.yaml"
    assert found.lm_config is None


@pytest.mark.parametrize("name", ["../config.yaml", "/etc/passwd", "exp/../../x", "C:/x"])
def test_names_that_lead_out_are_refused(tmp_path, name):
    folder = write_packed(tmp_path / "model", config=name)
    with pytest.raises(PackedModelError, match="leads out of its folder"):
        open_packed(folder, "asr")


def test_a_link_that_leads_out_is_refused(tmp_path):
    folder = write_packed(tmp_path / "model", weights="exp/asr/link.pth")
    (tmp_path / "secret.pth").touch()
    (folder / "exp/asr/link.pth").symlink_to(tmp_path / "secret.pth")
    with pytest.raises(PackedModelError, match="leads out of its folder"):
        open_packed(folder, "asr")


@pytest.mark.parametrize("name", ["../escape.txt", "/tmp/escape.txt"])
def test_a_zip_with_members_outside_is_refused_and_writes_nothing(tmp_path, name):
    archive = tmp_path / "model.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("meta.yaml", "{}")
        made.writestr(name, "x")
    with pytest.raises(PackedModelError, match="leads out of its folder"):
        open_packed(archive, "asr")
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]


def test_files_that_are_not_there_and_folders_without_a_list_are_told(tmp_path):
    folder = write_packed(tmp_path / "model", weights="exp/none.pth")
    with pytest.raises(PackedModelError, match=r"exp/none\.pth.*not there"):
        open_packed(folder, "asr")
    with pytest.raises(PackedModelError, match=r"no meta\.yaml"):
        open_packed(tmp_path, "asr")
    with pytest.raises(PackedModelError, match="does not exist"):
        open_packed(tmp_path / "none.zip", "asr")


def test_config_and_weights_beside_a_packed_model_are_refused():
    with pytest.raises(ConfigError, match="Delete config and weights"):
        ESPnet2Inference("asr", "a", "b", packed_model="m.zip")
    with pytest.raises(ConfigError, match="packed_model: PATH"):
        ESPnet2Inference("asr")
