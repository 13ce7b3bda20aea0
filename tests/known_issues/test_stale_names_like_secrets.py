"""What looked like a secret was left out of the fingerprint, so that a change of it was not seen.

Folders such as `exp/hf_conformer1` were no path any more, so that the content of files in them did
not count either.
"""

import json
import logging

import pytest

from espnet3.errors import StaleRunError
from espnet3.parallel import BaseRunner
from espnet3.parallel.folder_run import RunRequest, open_run
from espnet3.parallel.identity import changes, describe_run
from espnet3.shards.layout import manifest_path
from espnet3.systems.base.inference_provider import InferenceProvider

TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3h"


class Echo(BaseRunner):
    @staticmethod
    def forward(idx, **env):
        return idx


class Provider(InferenceProvider):
    @staticmethod
    def build_dataset(config):
        return [1]

    @staticmethod
    def build_model(config):
        return "model"


def run(output_dir, config=None, **params):
    return Echo(Provider(config or {}, params), output_dir=output_dir)(range(3))


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("weights", "exp/hf_conformer1/ave.pt", "exp/hf_conformer2/ave.pt"),
        ("weights", "exp/hf_conformer1", "exp/hf_conformer2"),
        ("pretrained", "org/hf_whisperlarge", "org/hf_whispersmall"),
        ("data", "sk-SK_commonvoice_17_0_2024_train", "sk-SK_commonvoice_18_0_2025_train"),
        ("data", f"{TOKEN}1", f"{TOKEN}2"),
        ("frames_per_token", 4, 5),
        ("penalty_per_token", 0.5, 0.25),
        ("word_token", "a", "b"),
        ("token", "a", "b"),
        ("api_token", 1, 2),
        ("password", 1, 2),
        ("secrets", {"a": 1}, {"a": 2}),
        ("prompt", "Write down. token: A", "Write down. token: B"),
        ("prompt", "the password = x", "the password = y"),
        ("prompt", "key=1 password=x", "key=1 password=y"),
        ("url", "https://me:one@host/model", "https://me:two@host/model"),
        ("header", "Bearer abcdefgh12345", "Bearer abcdefgh12346"),
    ],
)
@pytest.mark.parametrize("place", ["config", "params"])
def test_each_change_is_noticed(tmp_path, key, old, new, place):
    def values(value):
        return {"config": {key: value}} if place == "config" else {key: value}

    run(tmp_path, **values(old))
    run(tmp_path, **values(old))
    with pytest.raises(StaleRunError, match=rf"{place}\.{key}(\.a)?: .* -> "):
        run(tmp_path, **values(new))


@pytest.mark.parametrize("name", ["hf_conformer1", "sk-SK_commonvoice_17_0_2024", TOKEN])
def test_the_content_of_such_a_path_is_compared(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp" / name).mkdir(parents=True)
    weights = tmp_path / "exp" / name / "ave.pt"
    weights.write_bytes(b"1")
    config = {"weights": f"exp/{name}/ave.pt", "token": str(weights)}
    run(tmp_path / "out", config)
    weights.write_bytes(b"2")
    with pytest.raises(StaleRunError) as caught:
        run(tmp_path / "out", config)
    assert "config.weights: the file" in str(caught.value)
    assert "config.token: the file" in str(caught.value)


def test_no_secret_is_written_or_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse-battery")
    config = {"hub": {"token": TOKEN}, "cookie": "x correct-horse-battery", "password": 12345}
    run(tmp_path, config)
    text = manifest_path(tmp_path).read_text()
    assert not [secret for secret in (TOKEN, "correct-horse", "12345") if secret in text]
    monkeypatch.delenv("MY_SERVICE_TOKEN")
    run(tmp_path, config)  # what is known to be a secret is another matter than what it is
    with pytest.raises(StaleRunError, match=r"config\.hub\.token: 'secret:") as caught:
        run(tmp_path, {**config, "hub": {"token": TOKEN.upper()}})
    assert TOKEN.upper() not in str(caught.value)


def test_a_run_of_an_earlier_version_goes_on(tmp_path, caplog):
    config = {"token": "abc", "weights": "exp/hf_conformer1/a.pt", "prompt": "x token: A", "n": 1}
    run(tmp_path, config)
    path = manifest_path(tmp_path)
    values = json.loads(path.read_text())
    del values["versions"]["fingerprint"]
    values["fingerprint"].update(
        {
            "config.token": "<redacted>",
            "config.weights": "exp/<redacted>/a.pt",
            "config.prompt": "x token: <redacted>",
        }
    )
    path.write_text(json.dumps(values))
    with caplog.at_level(logging.WARNING, "espnet3"):
        run(tmp_path, config)
    assert "config.prompt, config.token, config.weights" in caplog.text
    with pytest.raises(StaleRunError, match=r"config\.weights: "):
        run(tmp_path, {**config, "weights": "exp/hf_conformer1/b.pt"})
    with pytest.raises(StaleRunError, match=r"config\.n: 1 -> 2"):
        run(tmp_path, {**config, "n": 2})


def test_folders_that_an_earlier_version_did_not_note_are_told(tmp_path, caplog):
    model = tmp_path / "model"
    model.mkdir()
    provider = Provider({"model": str(model)})
    described = describe_run(Echo(provider), range(3))
    out = tmp_path / "out"
    request = RunRequest(out, out, "Echo", range(3), None, described, None)
    open_run(request, lambda: 1)
    path = manifest_path(out)
    values = json.loads(path.read_text())
    del values["versions"]["fingerprint"]
    values["files"] = {}
    path.write_text(json.dumps(values))
    with caplog.at_level(logging.WARNING, "espnet3"):
        assert changes(open_run(request, lambda: 1), described) == []
    assert f"config.model ({model})" in caplog.text
