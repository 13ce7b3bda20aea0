"""The examples run as they are, and print what they promise."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "promised"),
    [
        ("decode_in_memory", "12 results; the last one: {'utt_id': 'utt11'"),
        ("skip_bad_items", "espnet3 failed demo-run/upper"),
        ("pitch", "300 files in demo-run/pitch/pitch.scp"),
        ("train_classifier", "exp/classifier/valid.accuracy.ave_1best.safetensors"),
    ],
)
def test_an_example_runs_in_an_empty_folder(tmp_path, name, promised):
    process = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert promised in process.stdout
    if name == "train_classifier":
        assert "Frozen: encoder (in eval mode); 160 of 226 parameters" in process.stderr
        assert "EarlyStopping ended the training after epoch" in process.stderr


def test_examples_stay_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 60, path.name
