"""A corpus that is made: the same bytes whatever the workers, and after any kill."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from espnet3.components.data.corpus import Corpus, build_corpus
from espnet3.components.data.errors import DataError
from espnet3.components.data.sources import jsonl
from espnet3.errors import ItemError
from espnet3.io.tables import read_jsonl
from espnet3.parallel import use_parallel

RATE = 8000


def beep(row):
    noise = np.random.default_rng(row["seed"]).normal(size=400 + row["seed"])
    return 0.1 * noise


def beep_at(row, pitch):
    return pitch * beep(row) / 4


def louder_beep(row):
    return 2 * beep(row)


def rows_of(n, **more):
    return [{"utt_id": f"utt{i}", "text": f"beep {i}", "seed": i, **more} for i in range(n)]


def digest_of(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_a_corpus_is_read_by_the_manifest_source(tmp_path):
    folder = tmp_path / "my 'corpus'"
    build_corpus(folder, rows_of(3, speaker="me"), beep, sample_rate=RATE)
    dataset = jsonl.Dataset(folder / "manifest.jsonl", sample_rate=RATE)
    sample = dataset[2]
    assert (sample["utt_id"], sample["text"], sample["speaker"]) == ("utt2", "beep 2", "me")
    assert np.allclose(sample["speech"], beep({"seed": 2}), atol=1 / 32768)
    assert dataset.durations() == [400 / RATE, 401 / RATE, 402 / RATE]
    assert sorted(path.name for path in folder.iterdir()) == [
        "audio", "corpus.json", "manifest.jsonl",
    ]  # fmt: skip


def test_two_workers_make_the_same_bytes_as_one(tmp_path):
    for n_workers in (1, 2):
        with use_parallel({"env": "local", "n_workers": n_workers}):
            build_corpus(tmp_path / str(n_workers), rows_of(40), beep, sample_rate=RATE)
    assert digest_of(tmp_path / "1") == digest_of(tmp_path / "2")


def test_a_field_splits_it_into_manifests(tmp_path):
    rows = [*rows_of(3, set="train"), {**rows_of(4)[3], "set": "test"}]
    build_corpus(tmp_path / "c", rows, beep, sample_rate=RATE, split_by="set", format="wav")
    names = {name: list(read_jsonl(tmp_path / f"c/{name}.jsonl")) for name in ("train", "test")}
    assert [row["utt_id"] for row in names["train"]] == ["utt0", "utt1", "utt2"]
    assert names["test"][0]["audio"] == "audio/utt3.wav"


def test_what_is_built_is_not_built_again(tmp_path):
    corpus = Corpus(tmp_path / "c", rows_of(3), beep, RATE)
    assert not corpus.is_built()
    corpus.build()
    assert corpus.is_built()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")}
    build_corpus(tmp_path / "c", rows_of(3), beep, sample_rate=RATE)
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")}


@pytest.mark.parametrize(
    "change",
    [{"rows": rows_of(2)}, {"make_audio": louder_beep}, {"sample_rate": 16000}, {"format": "wav"}],
    ids=lambda change: next(iter(change)),
)
def test_a_corpus_of_other_rows_or_code_takes_its_place_whole(tmp_path, change):
    settings = {"rows": rows_of(3), "make_audio": beep, "sample_rate": RATE}
    build_corpus(tmp_path / "c", **settings)
    changed = {**settings, **change}
    assert not Corpus(tmp_path / "c", **changed).is_built()
    build_corpus(tmp_path / "c", **changed)
    build_corpus(tmp_path / "fresh", **changed)
    assert digest_of(tmp_path / "c") == digest_of(tmp_path / "fresh")


def test_a_corpus_of_an_earlier_version_is_kept(tmp_path, caplog):
    settings = {"rows": rows_of(3), "make_audio": beep, "sample_rate": RATE}
    build_corpus(tmp_path / "c", **settings)
    marker = tmp_path / "c" / "corpus.json"
    facts = json.loads(marker.read_bytes())
    del facts["code_rule"]
    marker.write_text(json.dumps({**facts, "digest": "of another form"}))
    assert Corpus(tmp_path / "c", **settings).is_built()
    assert "earlier" in caplog.text
    for change in ({"rows": rows_of(3, speaker="me")}, {"sample_rate": 16000}, {"format": "wav"}):
        assert not Corpus(tmp_path / "c", **{**settings, **change}).is_built()


def test_a_function_with_arguments_counts_with_them(tmp_path):
    settings = {"rows": rows_of(3), "sample_rate": RATE}
    build_corpus(tmp_path / "c", make_audio=partial(beep_at, pitch=1), **settings)
    assert Corpus(tmp_path / "c", make_audio=partial(beep_at, pitch=1), **settings).is_built()
    assert not Corpus(tmp_path / "c", make_audio=partial(beep_at, pitch=2), **settings).is_built()


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="Name another folder"):
        build_corpus(tmp_path, rows_of(1), beep, sample_rate=RATE)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no rows"),
        ([{"utt_id": "a b"}], "must be one word"),
        ([{"text": "x"}], "utt_id None"),
        ([{"utt_id": "a", "set": "x"}, {"utt_id": "a", "set": "x"}], "'a' is in two rows"),
        ([{"utt_id": "a"}], "lacks 'set'"),
    ],
)
def test_wrong_rows_are_named_before_anything_is_written(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        build_corpus(tmp_path / "c", rows, beep, sample_rate=RATE, split_by="set")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("audio", [[], [float("nan")], 3.0, [1, 2]])
def test_what_is_no_audio_is_named_with_its_row(tmp_path, audio):
    with pytest.raises(ItemError, match=r"(?s)for utt0, where real numbers"):
        build_corpus(tmp_path / "c", rows_of(1), lambda row: audio, sample_rate=RATE)


JOB = """
import sys, time
import numpy as np
from espnet3.components.data.corpus import build_corpus
from espnet3.parallel import use_parallel

def beep(row):
    time.sleep(0.02)
    return 0.1 * np.random.default_rng(row["seed"]).normal(size=400 + row["seed"])

if __name__ == "__main__":
    rows = [{"utt_id": f"utt{i}", "text": f"beep {i}", "seed": i} for i in range(60)]
    with use_parallel({"env": "local", "n_workers": int(sys.argv[2])}):
        build_corpus(sys.argv[1], rows, beep, sample_rate=8000)
"""


def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    _finish(_start(tmp_path, "whole", 1))
    n_killed = 0
    for n_audio in (1, 15, 25, 40, 59):
        job = _start(tmp_path, "killed", 1 + n_killed % 2)
        audio = tmp_path / "killed/audio"
        deadline = time.monotonic() + 60
        while job.poll() is None and (not audio.is_dir() or len(os.listdir(audio)) < n_audio):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        n_killed += job.poll() is None
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert n_killed >= 3
    _finish(_start(tmp_path, "killed", 2))
    assert digest_of(tmp_path / "killed") == digest_of(tmp_path / "whole")


def test_killed_while_it_tidies_up_the_rest_is_removed_next_time(tmp_path):
    corpus = Corpus(tmp_path / "c", rows_of(2), beep, RATE)
    corpus.build()
    before = digest_of(tmp_path / "c")
    (tmp_path / "c/.build/half").mkdir(parents=True)
    assert not corpus.is_built()
    corpus.build()
    assert corpus.is_built()
    assert digest_of(tmp_path / "c") == before
    assert json.loads((tmp_path / "c/corpus.json").read_text())["n_utterances"] == 2


def _start(folder: Path, name: str, n_workers: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "job.py", name, str(n_workers)],
        cwd=folder,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )


def _finish(job: "subprocess.Popen[bytes]") -> None:
    assert job.wait(timeout=60) == 0
