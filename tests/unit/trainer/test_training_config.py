import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.config import load_training_config


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that reads the keys of a config."""
    monkeypatch.chdir(tmp_path)

    def load_text(text: str):
        (tmp_path / "training.yaml").write_text(f"exp_dir: exp/a\n{text}")
        return load_training_config(load_config("training.yaml"))

    return load_text


def test_defaults(load):
    config = load("seed: null\ntrainer: {devices: 2}\n")
    assert config.exp_dir == "exp/a"
    assert (config.seed, config.resume, config.num_threads) == (0, "auto", None)
    assert (config.checkpoint.every_minutes, config.fit, config.init) == ("auto", {}, ())


def test_interpolations_are_resolved(load):
    assert load("n: 7\nseed: ${n}\nfit: {ckpt_path: '${exp_dir}/a.ckpt'}\n").fit == {
        "ckpt_path": "exp/a/a.ckpt"
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("resume: true", "resume is True"),
        ("resume: always", "must be 'auto' or 'never'"),
        ("seed: -1", "Write: seed: 0"),
        ("num_threads: 0", "num_threads is 0"),
        ("checkpoint: [1]", "Write: checkpoint: {every_minutes: 30}"),
        ("fit: last.ckpt", "Write: fit: {ckpt_path: exp/other/last.ckpt}"),
    ],
)
def test_a_wrong_value_is_told_with_its_place(load, line, words):
    with pytest.raises(ConfigError) as refused:
        load(f"{line}\n")
    assert words in str(refused.value)
    assert "(set in training.yaml:2)" in str(refused.value)


def test_all_problems_are_told_at_once(load):
    with pytest.raises(ConfigError, match="2 problems"):
        load("seed: x\nresume: y\n")
