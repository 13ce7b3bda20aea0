"""A recogniser through the stages: decoded on two workers, packed, moved, and loaded elsewhere."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import soundfile

from espnet3.cli.recipe import run_recipe
from espnet3.systems.asr.system import ASRSystem
from tests.helpers.recognizer_parts import INFERENCE, RATE, make_recipe, noise

KINDS = ("training", "inference", "metrics", "publication")

LOAD = """
import sys
from espnet3.systems.asr.inference import Speech2Text

assert not any(path.endswith("asr") for path in sys.path)
for path in sys.argv[2:]:
    print(Speech2Text.from_packed(path)(sys.argv[1]).text)
assert "lightning" not in sys.modules
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_recipe(tmp_path_factory.mktemp("digits of mine") / "asr")


@pytest.fixture
def run(recipe, monkeypatch, capfd):
    """Return a function that runs stages in this process; their workers are others."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments, code=0):
        configs = [word for kind in KINDS for word in (f"--{kind}_config", f"conf/{kind}.yaml")]
        found = run_recipe(ASRSystem, [*arguments, *configs], recipe_dir=recipe)
        captured = capfd.readouterr()
        assert found == code, captured.err
        return captured.out + captured.err

    return run


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("model.weights=exp/training/valid.los.safetensors", "Stage train (4) makes them"),
        ("model.decoder._target_=espnet3.components.decoding.ctc_beam.PrefixBeam", "PrefixBeamCTC"),
        ("model.decoder.beam_sise=4", "Did you mean 'beam_size'?"),
        ("model.n_best=9", "Write: beam_size: 9, or n_best: 4"),
        ("model.decoder=greedy", "_target_: espnet3.components.decoding.ctc_greedy.GreedyCTC"),
        ("model.window_seconds=3", "window_seconds: 20, overlap_seconds: 4"),
        ("model.n_bset=2", "Did you mean 'n_best'?"),
        (
            "model.decoder={_target_: espnet3.components.decoding.ctc_greedy.GreedyCTC}",
            "model.decoder.beam_size (set in conf/inference.yaml:9) is no argument",
        ),
        ("model.window_seconds=abc", "must be a number"),
        (
            "model.decoder={_target_: espnet3.components.decoding.lexicon_beam.LexiconCTC, "
            "tokenizer: data/tokenizer, beam_sise: 3}",
            "Did you mean 'beam_size'?",
        ),
    ],
)
def test_mistakes_are_told_before_workers_start(recipe, run, override, problem):
    assert problem in run("--stages", "infer", override, code=1)
    assert not (recipe / "exp/training/inference").exists()


def test_a_dry_run_shows_all_stages_and_writes_nothing(recipe, run):
    before = sorted(recipe.rglob("*"))
    out = run("--stages", "infer", "measure", "pack_model", "--dry-run")
    assert "batches:" in out
    assert "weights: exp/training/valid.loss.ave_3best.safetensors" in out
    assert "tiny_asr.tar.gz" in out
    assert sorted(recipe.rglob("*")) == before


def test_decoded_packed_moved_and_loaded_elsewhere(recipe, run, tmp_path):
    run("--stages", "infer", "measure", "pack_model")
    results = recipe / "exp/training/inference/dev"
    hyps = dict(line.split(" ", 1) for line in (results / "hyp.scp").read_text().splitlines())
    assert list(hyps) == [f"utt{i}" for i in range(5)]
    nbest = (results / "nbest.scp").read_text().splitlines()
    rows = json.loads(nbest[2].partition(" ")[2])
    assert len(rows) == 2
    assert rows[0]["text"] == hyps["utt2"]
    card = (recipe / "exp/training/packed/README.md").read_text()
    assert "### WER" in card

    packed = INFERENCE.replace("Speech2Text", "Speech2Text.from_packed")
    packed = re.sub(r"  weights: .*\n", "  path: ${exp_dir}/tiny_asr.tar.gz\n", packed)
    packed = re.sub(r"  decoder: .*\n", "", packed)
    (recipe / "conf/from_packed.yaml").write_text(packed)
    run_recipe(
        ASRSystem,
        ["--stages", "infer", "--inference_config", "conf/from_packed.yaml", "exp_tag=training"],
        recipe_dir=recipe,
    )
    same = recipe / "exp/training/from_packed/dev/hyp.scp"
    assert same.read_text() == (results / "hyp.scp").read_text()

    shutil.move(recipe / "exp/training/packed", tmp_path / "model")
    shutil.move(recipe / "exp/training/tiny_asr.tar.gz", tmp_path)
    audio = shutil.copy(recipe / "data/utt2.wav", tmp_path)
    hidden = recipe.rename(recipe.with_name("gone"))
    try:
        process = subprocess.run(
            [sys.executable, "-c", LOAD, audio, "model", "tiny_asr.tar.gz"],
            cwd=tmp_path, capture_output=True, text=True, timeout=100,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
        )  # fmt: skip
    finally:
        hidden.rename(recipe)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == [hyps["utt2"]] * 2


def test_one_item_that_is_no_audio_is_skipped_and_named(recipe, run):
    bad = recipe / "data/bad.jsonl"
    (recipe / "data/broken.wav").write_bytes(b"no audio")
    soundfile.write(recipe / "data/good.wav", noise(0.5), RATE)
    rows = [{"utt_id": n, "audio": f"{n}.wav", "text": "one", "duration": 0.5}
            for n in ("good", "broken")]  # fmt: skip
    bad.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(
        "--stages", "infer", "dataset.test.0.name=bad", "runner.on_error=skip",
        f"dataset.test.0.data_src_args.path={bad}", "parallel.n_workers=1",
    )  # fmt: skip
    folder = recipe / "exp/training/inference/bad"
    assert (folder / "hyp.scp").read_text().startswith("good ")
    assert "broken.wav" in (folder / "failed.jsonl").read_text()
