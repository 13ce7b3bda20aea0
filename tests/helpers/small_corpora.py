"""Small corpora of noise in each format that `espnet3 init` takes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

RATE = 8000
WORDS = ("one", "two", "three", "four")

Row = dict[str, Any]


def write_rows(
    folder: Path, n_utterances: int, *, n_speakers: int = 2, rate: int = RATE, seconds: float = 0.5
) -> list[Row]:
    """Write audio, and return what is known of each utterance."""
    (folder / "wav").mkdir(parents=True)
    random = np.random.default_rng(n_utterances)
    rows = []
    for number in range(n_utterances):
        path = folder / "wav" / f"{folder.name}-{number:03}.wav"
        n_samples = int(rate * seconds * random.uniform(0.8, 1.2))
        soundfile.write(path, random.normal(scale=0.1, size=n_samples), rate)
        rows.append({
            "id": path.stem,
            "audio_filepath": str(path),
            "text": " ".join(random.choice(WORDS, size=1 + number % 2)),
            "speaker": f"speaker{number % n_speakers:02}",
        })  # fmt: skip
    return rows


def write_corpus(data: str, folder: Path, rows: list[Row]) -> Path:
    """Write the utterances in a format, and return the path to name on the command line."""
    return _WRITERS[data](folder, rows)


def _kaldi(folder: Path, rows: list[Row]) -> Path:
    for name, key in {"wav.scp": "audio_filepath", "text": "text", "utt2spk": "speaker"}.items():
        (folder / name).write_text("".join(f"{row['id']} {row[key]}\n" for row in rows))
    return folder


def _jsonl(folder: Path, rows: list[Row]) -> Path:
    path = folder / "manifest.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _tsv(folder: Path, rows: list[Row]) -> Path:
    path = folder / "manifest.tsv"
    lines = ["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def _folder(folder: Path, rows: list[Row]) -> Path:
    for row in rows:
        target = folder / "recordings" / row["speaker"]
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(row["audio_filepath"], target)
        (target / f"{row['id']}.txt").write_text(row["text"])
    return folder / "recordings"


def _huggingface(folder: Path, rows: list[Row]) -> Path:
    import datasets

    table = datasets.Dataset.from_list(rows)
    datasets.DatasetDict({"train": table, "other": table}).save_to_disk(folder / "saved")
    return Path(f"{folder / 'saved'}:train")


def _lhotse(folder: Path, rows: list[Row]) -> Path:
    from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

    cuts = []
    for row in rows:
        recording = Recording.from_file(row["audio_filepath"], recording_id=row["id"])
        part = SupervisionSegment(
            row["id"], row["id"], 0, recording.duration, text=row["text"], speaker=row["speaker"]
        )
        cuts.append(
            MonoCut(row["id"], 0, recording.duration, 0, [part], recording=recording)
        )  # fmt: skip
    path = folder / "cuts.jsonl.gz"
    CutSet.from_cuts(cuts).to_file(path)
    return path


_WRITERS = {
    "kaldi": _kaldi,
    "jsonl": _jsonl,
    "tsv": _tsv,
    "folder": _folder,
    "huggingface": _huggingface,
    "lhotse": _lhotse,
}
