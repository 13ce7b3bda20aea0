"""`upload_model` against a server on this machine, which speaks as the Hugging Face Hub does."""

import subprocess
import sys

import pytest

from espnet3.errors import ConfigError, MissingExtraError, ResourceError
from espnet3.systems.asr.publication import (
    check_upload_model,
    describe_upload_model,
    pack_model,
    upload_model,
)
from espnet3.systems.base.context import load_configs
from tests.helpers.hub_server import HubServer
from tests.helpers.recognizer_parts import make_recipe

pytest.importorskip("huggingface_hub")

CONFIGS = {"training": ["conf/training.yaml"], "publication": ["conf/publication.yaml"]}

# In a process of its own, as the client reads its settings when it is imported.
UPLOAD = f"""
from espnet3.systems.asr.publication import upload_model
from espnet3.systems.base.context import load_configs
import sys
print("commit:", upload_model(load_configs({CONFIGS!r}, sys.argv[1:]).publication))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = make_recipe(tmp_path_factory.mktemp("corpus") / "asr")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pack_model(load())
    return folder


@pytest.fixture
def recipe(packed, monkeypatch):
    """Go to a recipe whose model is packed, without any token."""
    monkeypatch.chdir(packed)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    return packed


def load(*overrides):
    return load_configs(CONFIGS, overrides).publication


def upload(recipe, server, *overrides, token=None):
    import os

    environ = {
        **os.environ, "HF_ENDPOINT": server.url, "HF_TOKEN": token or server.token,
        "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "*",
        "HF_HOME": str(recipe / "hf"),
    }  # fmt: skip
    environ.pop("HF_HUB_OFFLINE", None)
    return subprocess.run(
        [sys.executable, "-c", UPLOAD, *overrides],
        cwd=recipe, env=environ, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_the_files_arrive_as_they_are(recipe):
    with HubServer().running() as server:
        first = upload(recipe, server)
        assert first.returncode == 0, first.stderr
        assert f"commit: {server.url}/tester/tiny_asr/commit/1111" in first.stdout
        again = upload(recipe, server, "upload.private=false")
        assert again.returncode == 0, again.stderr  # the repository is there, and stays private
    folder = recipe / "exp/training/packed"
    sent = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}
    assert server.files == sent
    assert server.repos == {"tester/tiny_asr": True}
    assert len(server.objects) == 1  # the weights, sent once
    assert server.token not in "".join(p.read_text() for p in recipe.rglob("*.yaml"))


def test_a_refusal_says_what_to_do(recipe):
    with HubServer().running() as server:
        wrong = upload(recipe, server, token="hf_wrong_token")
        assert "ResourceError" in wrong.stderr
        assert "export HF_TOKEN=" in wrong.stderr
        assert "hf_wrong_token" not in wrong.stderr
    assert server.files == {}
    gone = upload(recipe, server)
    assert f"{server.url} cannot be reached" in gone.stderr


def test_a_dry_run_lists_the_files_and_asks_nobody(recipe, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    lines = describe_upload_model(load())
    assert "http://127.0.0.1:9/tester/tiny_asr (private" in lines[0]
    assert any("weights.safetensors (" in line for line in lines)


def test_what_is_missing_is_told_before_anything(recipe, monkeypatch):
    with pytest.raises(ResourceError, match="hf auth login"):
        check_upload_model(load())
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_abc")
    with pytest.raises(ConfigError, match="--stages pack_model"):
        upload_model(load("pack.output_dir=nowhere"))
    with pytest.raises(ConfigError, match=r"upload: \{repo_id: user/model\}"):
        check_upload_model(load("upload=null"))
    with pytest.raises(ConfigError, match="export HF_TOKEN"):
        check_upload_model(load("upload.token=hf_abcdefghijk"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"\.\[hub\]"):
        check_upload_model(load())


@pytest.mark.parametrize("repo_id", ["tiny", "a/b/c", "a b/c", "a/b--c", "a/b.git", "/x"])
def test_odd_names_of_repositories_are_refused(recipe, repo_id):
    with pytest.raises(ConfigError, match="repo_id: user/"):
        check_upload_model(load(f"upload.repo_id={repo_id}"))
