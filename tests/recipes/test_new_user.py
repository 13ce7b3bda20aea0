"""A new user: an empty folder, the installed wheel, a corpus, two commands, a number."""

import json
import os
import resource
import shlex
import time
from pathlib import Path

import pytest

from tests.helpers.installed_package import build, install, run
from tests.helpers.recipe_copy import DATA

SPEECH = DATA / "audiomnist_16k"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MOST_ERRORS = 6.0  # percent
MINUTES = 6
QUIET = 0.5  # processes at work before the test, of two cores


def split_of(speaker: int) -> str:
    """Return the set of a speaker; the recipe for AudioMNIST holds out 5, 10, ..., 60 instead."""
    if speaker % 6 == 3:
        return "test"
    return "valid" if speaker % 12 == 6 else "train"


def write_kaldi(folder: Path) -> None:
    """Write data directories of single words: 45, 5 and 10 speakers."""
    for file in sorted(SPEECH.glob("data/*/*.flac")):
        digit, speaker, take = file.stem.split("_")
        target = folder / split_of(int(speaker))
        target.mkdir(parents=True, exist_ok=True)
        id = f"{speaker}-{digit}-{take}"
        values = {"wav.scp": file, "text": WORDS[int(digit)], "utt2spk": speaker}
        for name, value in values.items():
            with (target / name).open("a") as lines:
                lines.write(f"{id} {value}\n")


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.long
@pytest.mark.cold
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not SPEECH.is_dir(), reason=f"there is no {SPEECH}")
def test_two_commands_lead_from_a_corpus_to_a_number(tmp_path):
    commands = install(build(tmp_path / "dist")[1], tmp_path / "venv")
    write_kaldi(tmp_path / "data")
    home = tmp_path / "home"
    home.mkdir()
    is_quiet = os.getloadavg()[0] < QUIET
    began, used = time.monotonic(), cpu_seconds()

    options = [f"--{name}={tmp_path / 'data' / name}" for name in ("train", "valid", "test")]
    told = run(commands / "espnet3", "init", "my_corpus/asr", "--data", "kaldi", *options, cwd=home)
    program, *line = shlex.split(told.splitlines()[-1])
    assert program == "espnet3"
    told = run(commands / program, *line, cwd=home, seconds=3000)

    minutes, used = (time.monotonic() - began) / 60, cpu_seconds() - used
    assert "WER  test  1,000 utterances" in told
    results = home / "my_corpus" / "asr" / "exp" / "training" / "inference"
    score = json.loads((results / "metrics.json").read_text())["WER"]["test"]
    load = os.getloadavg()[1]
    print(f"WER {score['rate']:.2f}%, {used:.0f} CPU s, {minutes:.1f} minutes, load {load:.1f}")
    assert score["n_utterances"] == 1000
    assert score["rate"] <= MOST_ERRORS
    assert (results / "report.html").is_file()
    # What two cores can do in this time; how long it takes is told only where nothing else runs.
    assert used <= 2 * 60 * MINUTES
    if is_quiet:
        assert minutes <= MINUTES
