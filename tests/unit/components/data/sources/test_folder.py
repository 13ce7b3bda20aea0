import numpy as np
import pytest
import soundfile

from espnet3.components.data.sources import folder, text
from espnet3.errors import ConfigError, RecordError


@pytest.fixture
def recordings(awkward):
    for number, name in enumerate(("anna/a 1", "anna/b", "ben/a 1"), 1):
        path = awkward / f"{name}.wav"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, np.zeros(1600 * number), 16000)
        path.with_suffix(".txt").write_text(f"hello\n{number} ")
    return awkward


def test_a_text_beside_each_file_is_its_transcript(recordings):
    found = folder.Dataset(recordings, sample_rate=16000)
    assert [found.fields(i) for i in range(3)] == [
        {"utt_id": "anna-a_1", "text": "hello 1"},
        {"utt_id": "anna-b", "text": "hello 2"},
        {"utt_id": "ben-a_1", "text": "hello 3"},
    ]
    assert found.durations() == pytest.approx([0.1, 0.2, 0.3])
    assert found[2]["speech"].shape == (4800,)
    assert found.audio_file(0).endswith("anna/a 1.wav")


def test_folders_can_be_speakers(recordings):
    found = folder.Dataset(recordings, speaker_is_folder=True)
    assert [found.fields(i)["speaker"] for i in range(3)] == ["anna", "anna", "ben"]
    assert found.fingerprint() != folder.Dataset(recordings).fingerprint()


def test_another_text_is_another_fingerprint(recordings):
    before = folder.Dataset(recordings).fingerprint()
    (recordings / "anna" / "b.txt").write_text("other")
    assert folder.Dataset(recordings).fingerprint() != before


def test_a_readme_beside_the_recordings_is_no_transcript(recordings):
    (recordings / "README.txt").write_text("mine")
    assert len(folder.Dataset(recordings)) == 3


@pytest.mark.parametrize(
    ("made", "lost", "told"),
    [
        ("anna/new.flac", "", "new.flac has no text beside it"),
        ("", "anna/b.wav", "b.txt has no audio beside it"),
        ("anna/b.flac", "", "has a twin of another format"),
    ],
)
def test_files_without_their_other_half_are_refused_by_name(recordings, made, lost, told):
    if made:
        soundfile.write(recordings / made, np.zeros(160), 16000)
    if lost:
        (recordings / lost).unlink()
    with pytest.raises(RecordError, match=f"{told}.*move these files elsewhere"):
        folder.Dataset(recordings)


def test_a_folder_without_audio_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no audio file\. Name a folder"):
        folder.Dataset(tmp_path)


def test_texts_of_a_source_are_read_without_its_audio(recordings):
    for path in recordings.glob("*/*.wav"):
        path.write_text("no audio")
    found = text.Dataset(recordings, of="folder")
    assert [found[i]["text"] for i in range(3)] == ["hello 1", "hello 2", "hello 3"]
    assert found.fingerprint() == text.Dataset(recordings, of="folder").fingerprint()
    with pytest.raises(ConfigError, match=r"Did you mean 'folder'\?"):
        text.Dataset(recordings, of="foldr")
