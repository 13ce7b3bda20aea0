import json
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from espnet3 import __version__
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.stages import Invocation, StageRecord, find_stage, git_state, stages_of
from espnet3.systems.base.system import BaseSystem

INFER = find_stage(stages_of(BaseSystem), "infer")


@pytest.fixture
def record(recipe, write, monkeypatch):
    """The record of `infer` with a config that has secrets in all the places people put them."""
    monkeypatch.setenv("HF_TOKEN", "hf_from_the_environment")
    config = write(
        "conf/my inference.yaml",
        r"""
        beam_size: 8
        name: beam${beam_size}
        idx_key: utt_id
        shell: \${HOME}/x
        hub: {token: hf_in_the_file, repo: "${oc.env:HF_TOKEN}"}
        parallel:
          options: {job_script_prologue: ["export WANDB_API_KEY=wandb_in_a_job"]}
        """,
    )
    overrides = ["hub.password=typed_on_the_line", "model.path=it's.pt"]
    loaded = load_configs({"inference": [config]}, overrides).inference
    command = ["python", "run.py", "--stage", "6", "--config", config, *overrides, "note=a\nb"]
    return StageRecord(Path("exp/config"), INFER, loaded, Invocation(command, "..", recipe))


SECRETS = ["hf_from_the_environment", "hf_in_the_file", "wandb_in_a_job", "typed_on_the_line"]


def read(record):
    record.begin()
    return [(record.folder / f"infer.{suffix}").read_text() for suffix in ("yaml", "json")]


def test_neither_file_has_a_secret(record):
    for text in read(record):
        assert not [secret for secret in SECRETS if secret in text]
        assert "<redacted>" in text


def test_the_config_is_merged_and_resolved_and_can_be_loaded(record):
    text, _ = read(record)
    config = OmegaConf.create(text)
    assert (config.name, config.idx_key, config.model.path) == ("beam8", "utt_id", "it's.pt")
    assert config.exp_dir == "./exp/my inference"
    assert config.shell == "${HOME}/x"
    assert "${beam_size}" not in text


def test_the_config_says_which_command_wrote_it_and_when(record):
    text, described = read(record)
    first, second = text.splitlines()[:2]
    assert first.startswith("# python run.py --stage 6 --config 'conf/my inference.yaml'")
    assert first.endswith("'note=a\\nb'")
    assert second == f"# {json.loads(described)['start']}"


def test_each_key_has_its_source(record):
    sources = json.loads(read(record)[1])["sources"]
    assert sources["beam_size"] == "conf/my inference.yaml:2"
    assert sources["parallel.options.job_script_prologue.0"] == "conf/my inference.yaml:8"
    assert sources["exp_tag"] == "default"
    assert sources["model.path"] == "command line: model.path=it's.pt"
    assert sources["hub.password"] == "command line: hub.password=<redacted>"


def test_the_record_says_how_it_was_run_and_how_it_ended(record):
    begun = json.loads(read(record)[1])
    assert (begun["stage"], begun["number"], begun["state"], begun["end"]) == (
        "infer", 6, "running", None,
    )  # fmt: skip
    assert begun["working_dir"] == ".."
    assert begun["files"] == ["conf/my inference.yaml"]
    assert begun["versions"]["espnet3"] == __version__
    assert {"python", "torch", "numpy"} <= set(begun["versions"])
    record.finish("failed")
    ended = json.loads((record.folder / "infer.json").read_text())
    assert ended["state"] == "failed"
    assert ended["seconds"] >= 0
    assert ended["end"] >= ended["start"] == begun["start"]


def test_words_of_the_command_that_hold_a_secret_are_hidden_from_logs(record):
    hidden = record.invocation.hidden()
    assert hidden["hub.password=typed_on_the_line"] == "hub.password=<redacted>"
    assert "model.path=it's.pt" not in hidden


def git(folder, *arguments):
    settings = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *settings, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_recipe_without_git_has_no_commit(recipe):
    assert git_state(recipe) is None


def test_the_commit_and_what_was_changed_since_are_recorded(recipe):
    git(recipe, "init", "--initial-branch", "my/branch")
    (recipe / "run.py").write_text("print(1)\n")
    git(recipe, "add", "run.py")
    git(recipe, "commit", "-m", "first")
    (recipe / "exp").mkdir()
    (recipe / "exp" / "infer.log").touch()
    clean = git_state(recipe)
    assert clean == {
        "commit": git(recipe, "rev-parse", "HEAD"),
        "branch": "my/branch",
        "dirty": False,
        "changes": None,
    }
    (recipe / "run.py").write_text("print(2)\n")
    git(recipe, "checkout", "--detach")
    dirty = git_state(recipe)
    assert (dirty["branch"], dirty["dirty"]) == (None, True)
    assert dirty["changes"] == "1 file changed, 1 insertion(+), 1 deletion(-)"
