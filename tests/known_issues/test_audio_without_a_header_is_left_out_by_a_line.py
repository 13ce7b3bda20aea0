"""Audio whose length cannot be read ended `infer`, and only the same command was offered."""

import json
import shlex

import pytest

from tests.helpers.tones_recipe import call, write_recipe

WORDS = ("--stages", "infer", "--inference_config", "conf/inference.yaml")


@pytest.fixture
def recipe(tmp_path):
    write_recipe(tmp_path)
    manifest = tmp_path / "data" / "valid.jsonl"
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    manifest.write_text("".join(json.dumps(r | {"duration": None}) + "\n" for r in rows))
    (tmp_path / "data" / "audio" / "valid0.wav").write_bytes(b"no audio")
    (tmp_path / "exp" / "inference").mkdir(parents=True)
    (tmp_path / "exp" / "inference" / "last.ckpt").touch()
    return tmp_path


def test_line_that_leaves_it_out_is_told_and_works(recipe, capsys):
    assert call(recipe, *WORDS) == 1
    told = capsys.readouterr().err
    assert told.count("python run.py") == 1  # and not the line that fails, to continue
    line = next(text for text in told.splitlines() if "To decode the others, type: " in text)
    words = shlex.split(line.partition("type: ")[2])
    assert words == ["python", "run.py", *WORDS, "runner.on_error=skip"]
    assert call(recipe, *words[2:]) == 0
    (failed,) = (recipe / "exp/inference/few/failed.jsonl").read_text().splitlines()
    assert json.loads(failed)["ids"] == ["valid0"]
