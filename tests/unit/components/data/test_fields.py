"""Samples without their audio: nothing decodes it, and what they say is the same."""

import io
import tarfile

import numpy as np
import soundfile

from espnet3.components.data.augmentation import Gain, SpeedPerturb
from espnet3.components.data.dataset import (
    CombinedDataset,
    TransformedDataset,
    fields_of,
    has_fields,
)
from espnet3.components.data.sources import kaldi, tar


def audio():
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(1600, dtype=np.int16), 16000, format="FLAC")
    return buffer.getvalue()


def write_kaldi(folder):
    folder.mkdir()
    (folder / "a.flac").write_bytes(audio())
    (folder / "wav.scp").write_text(f"u1 {folder}/a.flac\n")
    (folder / "text").write_text("u1 hello\n")
    return kaldi.Dataset(folder)


def write_tar(path):
    with tarfile.open(path, "w") as archive:
        for name, data in (("u2.flac", audio()), ("u2.txt", b"you")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return tar.Dataset(path)


def test_our_sources_have_them_alone_and_combined(tmp_path):
    combined = CombinedDataset([write_kaldi(tmp_path / "k"), write_tar(tmp_path / "s.tar")])
    assert has_fields(combined)
    for i in range(2):
        whole = combined[i]
        assert fields_of(combined, i) == {
            k: v for k, v in whole.items() if k not in ("speech", "sample_rate")
        }
    (tmp_path / "k" / "a.flac").unlink()
    assert fields_of(combined, 0) == {"utt_id": "u1", "text": "hello"}


def test_what_a_transform_makes_needs_the_whole_sample(tmp_path):
    def shout(sample):
        return {"text": sample["text"].upper(), "n": len(sample["speech"])}

    loud = CombinedDataset([TransformedDataset(write_kaldi(tmp_path / "k"), shout)])
    assert not has_fields(loud)
    assert fields_of(loud, 0) == {"text": "HELLO", "n": 1600}


def test_a_dataset_of_its_own_need_not_have_them():
    assert not has_fields([1])
    assert fields_of([{"text": "a"}], 0) == {"text": "a"}


def test_texts_are_read_through_augmentations_without_audio(tmp_path):
    dataset = write_kaldi(tmp_path / "k")
    (tmp_path / "k" / "a.flac").unlink()
    for step in (Gain(), SpeedPerturb()):
        changed = CombinedDataset([TransformedDataset(dataset, step)])
        assert has_fields(changed)
        assert fields_of(changed, 0) == {"utt_id": "u1", "text": "hello"}
