"""Real recordings in the forms in which they are published."""

import json

import numpy as np
import soundfile

from espnet3.components.data.data_organizer import DataOrganizer

SENTENCE = "NORTHANGER ABBEY"


def read_transcripts(folder):
    lines = (folder / f"{folder.parent.name}-{folder.name}.trans.txt").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines)


def test_librispeech_as_kaldi_directory_and_as_manifest_is_the_same(librispeech, tmp_path):
    texts = read_transcripts(librispeech)
    present = {file.stem: file for file in sorted(librispeech.glob("*.flac"))}
    assert SENTENCE in texts["19-198-0000"]
    rows = [
        {"id": id, "audio": str(file), "text": texts[id], "speaker": "19"}
        for id, file in present.items()
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kaldi = tmp_path / "data/test"
    kaldi.mkdir(parents=True)
    (kaldi / "wav.scp").write_text("".join(f"{id} {file}\n" for id, file in present.items()))
    (kaldi / "text").write_text("".join(f"{id} {texts[id]}\n" for id in present))
    (kaldi / "utt2spk").write_text("".join(f"{id} 19\n" for id in present))
    organizer = DataOrganizer(
        tmp_path,
        test=[
            {"name": name, "data_src": name, "data_src_args": {"path": path, "sample_rate": 16000}}
            for name, path in (("kaldi", "data/test"), ("jsonl", "test.jsonl"))
        ],
    )
    one, two = organizer.test.values()
    assert len(one) == len(two) == len(present) > 5
    assert one.durations() == two.durations()
    for i, duration in enumerate(one.durations()):
        assert len(one[i]["speech"]) / 16000 == duration
        assert np.array_equal(one[i].pop("speech"), two[i].pop("speech"))
    first, same = one[0], two[0]
    assert (first.pop("speech") == same.pop("speech")).all()
    assert first == same
    assert SENTENCE in first["text"]


def test_an4_keeps_its_utterance_without_transcript_apart(an4):
    """Of the 8 recordings, `cen7-fash-b` has no line in the transcriptions."""
    texts = {}
    for name in ("train", "test"):
        for line in (an4 / f"etc/an4_{name}.transcription").read_text().splitlines():
            words, _, id = line.rpartition(" (")
            texts[id.rstrip(")")] = words.removeprefix("<s>").removesuffix("</s>").strip()
    files = {file.stem: file.relative_to(an4.parents[1]) for file in sorted(an4.rglob("*.sph"))}
    data = an4.parents[1] / "data/all"
    data.mkdir(parents=True)
    (data / "wav.scp").write_text("".join(f"{id} {file}\n" for id, file in files.items()))
    lines = [f"{id} {texts[id]}\n" for id in files if id in texts]
    (data / "text").write_text("".join(lines))
    entry = {"data_src": "kaldi", "data_src_args": {"path": str(data), "strict": False}}
    train = DataOrganizer(train=[entry]).train
    assert len(train) == len(files) == 8
    assert [s["utt_id"] for s in (train[i] for i in range(8)) if "text" not in s] == ["cen7-fash-b"]
    for i, file in enumerate(files.values()):
        samples, rate = soundfile.read(an4.parents[1] / file, dtype="float32")
        assert np.array_equal(train[i]["speech"], samples)
        assert (train[i]["sample_rate"], train.durations()[i]) == (rate, len(samples) / rate)
