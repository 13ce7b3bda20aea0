import gzip
import json
import pickle
import sys

import numpy as np
import pytest

from espnet3.components.data.errors import AudioError
from espnet3.components.data.sources.lhotse import Dataset
from espnet3.errors import ConfigError, MissingExtraError, RecordError

pytest.importorskip("lhotse")


@pytest.fixture
def cuts(tmp_path, write_wav):
    """Two cuts: the middle of a recording of 1 s with two supervisions, and one of 2 channels."""
    from lhotse import CutSet, Recording, SupervisionSegment

    write_wav(tmp_path / "wav/it's mono.wav", 1.0)
    write_wav(tmp_path / "wav/stereo.wav", 0.5, n_channels=2)
    middle = Recording.from_file(tmp_path / "wav/it's mono.wav").to_cut()
    middle = middle.truncate(offset=0.25, duration=0.5).with_id("middle")
    middle.supervisions = [
        SupervisionSegment("s2", "mono", 0.3, 0.2, text="there", speaker="ann"),
        SupervisionSegment("s1", "mono", 0.0, 0.3, text="hello", speaker="ann"),
    ]
    both = Recording.from_file(tmp_path / "wav/stereo.wav").to_cut().with_id("both")
    return CutSet.from_cuts([middle, both])


def write(cuts, path):
    cuts.to_file(path)
    return path


def edit(path, change):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def problem(error, *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        Dataset(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_cuts_come_with_audio_text_and_speaker(cuts, tmp_path, suffix):
    dataset = Dataset(write(cuts, tmp_path / f"it's cuts.{suffix}"), sample_rate=16000)
    assert len(dataset) == 2
    sample = dataset[0]
    speech = sample.pop("speech")
    assert speech.dtype == np.float32
    assert speech.shape == (8000,)
    assert sample == {
        "utt_id": "middle", "text": "hello there", "speaker": "ann", "sample_rate": 16000,
    }  # fmt: skip
    assert set(dataset[1]) == {"utt_id", "speech", "sample_rate"}
    assert dataset.durations() == [0.5, 0.5]
    assert pickle.loads(pickle.dumps(dataset))[0]["utt_id"] == "middle"


def test_the_audio_is_that_of_the_file(cuts, tmp_path):
    import soundfile

    mono, _ = soundfile.read(tmp_path / "wav/it's mono.wav", dtype="float32")
    stereo, _ = soundfile.read(tmp_path / "wav/stereo.wav", dtype="float32")
    path = write(cuts, tmp_path / "cuts.jsonl")
    assert np.array_equal(Dataset(path)[0]["speech"], mono[4000:12000])
    assert np.array_equal(Dataset(path)[1]["speech"], stereo)
    assert np.array_equal(Dataset(path, channel=1)[1]["speech"], stereo[:, 1])


def test_a_mixed_cut_knows_its_duration(cuts, tmp_path):
    from lhotse import CutSet

    mixed = cuts["middle"].pad(duration=2.0).with_id("mixed")
    path = write(CutSet.from_cuts([mixed, cuts["middle"]]), tmp_path / "cuts.jsonl")
    dataset = Dataset(path)
    assert dataset.durations() == [2.0, 0.5]
    assert dataset[0]["speech"].shape == (32000,)


def test_relative_paths_count_from_where_the_files_are(cuts, tmp_path):
    path = write(cuts, tmp_path / "cuts.jsonl")

    def make_relative(rows):
        for row in rows:
            source = row["recording"]["sources"][0]
            source["source"] = source["source"].removeprefix(f"{tmp_path}/")

    edit(path, make_relative)
    assert Dataset(path)[0]["speech"].shape == (8000,)
    (tmp_path / "wav").rename(tmp_path / "moved")
    assert "which is in none of" in problem(ConfigError, path)


@pytest.mark.parametrize("kind", ["command", "url"])
def test_a_recording_that_is_no_file_is_refused(cuts, tmp_path, kind):
    path = write(cuts, tmp_path / "cuts.jsonl")
    source = {"type": kind, "channels": [0], "source": "touch hacked"}
    edit(path, lambda rows: rows[1]["recording"].update(sources=[source]))
    message = problem(RecordError, path)
    assert message.startswith(f"{path}:2: The recording 'stereo' comes from a {kind}, 'touch hack")
    assert message.endswith('cuts.save_audios("wav").to_file(path)')


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: rows[1].pop("recording"), "with recordings in it"),
        (lambda rows: rows[1].pop("id"), "is no cut (KeyError: 'id')"),
        (lambda rows: rows.__setitem__(1, [1]), "is no cut (TypeError"),
        (lambda rows: rows[1].update(id="a b"), "an id is one word"),
        (lambda rows: rows[1].update(id="middle"), "cuts.modify_ids("),
    ],
)
def test_a_wrong_line_is_named_by_file_and_line(cuts, tmp_path, change, expected):
    path = write(cuts, tmp_path / "cuts.jsonl")
    edit(path, change)
    message = problem(RecordError, path)
    assert message.startswith(f"{path}:2: ")
    assert expected in message


def test_a_damaged_archive_is_refused(cuts, tmp_path):
    path = write(cuts, tmp_path / "cuts.jsonl.gz")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()))[:-20])
    assert "Write it again: cuts.to_file(path)" in problem(RecordError, path)


def test_audio_that_cannot_be_read_names_the_line(cuts, tmp_path):
    path = write(cuts, tmp_path / "cuts.jsonl")
    (tmp_path / "wav/stereo.wav").unlink()
    with pytest.raises(AudioError) as caught:
        Dataset(path)[1]
    assert str(caught.value).startswith(f"{path}:2: lhotse cannot read the audio: ")
    assert "lhotse validate" in str(caught.value)


def test_another_rate_is_refused(cuts, tmp_path):
    path = write(cuts, tmp_path / "cuts.jsonl")
    with pytest.raises(AudioError, match="The cut middle is sampled at 16000 Hz") as caught:
        Dataset(path, sample_rate=8000)[0]
    assert "cuts.resample(8000).save_audios(" in str(caught.value)


def test_the_fingerprint_changes_with_the_manifest(cuts, tmp_path):
    path = write(cuts, tmp_path / "cuts.jsonl")
    prints = [Dataset(path).fingerprint() for _ in range(2)]
    edit(path, lambda rows: rows[0]["supervisions"][0].update(text="here"))
    prints.append(Dataset(path).fingerprint())
    assert prints[0] == prints[1] != prints[2]


def test_without_the_extra_the_line_that_installs_it_is_shown(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lhotse", None)
    message = problem(MissingExtraError, tmp_path / "cuts.jsonl")
    assert message.endswith("pip install -c constraints.txt -e '.[lhotse]'")
