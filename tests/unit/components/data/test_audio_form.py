"""The options of all sources that say which form the audio has."""

import json

import numpy as np
import pytest

from espnet3.components.data.audio import AudioForm
from espnet3.components.data.dataset import CombinedDataset, TransformedDataset, durations_of
from espnet3.components.data.sources import jsonl, kaldi, tar
from espnet3.components.data.tar_writer import write_tar_shards
from espnet3.errors import ConfigError
from tests.helpers.bad_audio import encode, tone

WANTED = {"sample_rate": 16000, "channel": "mix", "resample": True}


@pytest.fixture
def corpus(tmp_path):
    """Return a folder with one utterance at 48 kHz in stereo, as Kaldi's and as a manifest."""
    (tmp_path / "a.flac").write_bytes(encode(tone(0.5, 48000, 2), 48000, kind="FLAC"))
    (tmp_path / "wav.scp").write_text(f"a {tmp_path}/a.flac\n")
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": "a", "audio": "a.flac"}) + "\n")
    return tmp_path


@pytest.fixture(params=["kaldi", "jsonl", "tar", "huggingface", "lhotse", "parquet"])
def make(request, corpus):
    """Return a function that opens the utterance through each of the sources."""
    if request.param == "kaldi":
        return lambda **form: kaldi.Dataset(corpus, **form)
    if request.param == "jsonl":
        return lambda **form: jsonl.Dataset(corpus / "a.jsonl", **form)
    if request.param == "tar":
        write_tar_shards(kaldi.Dataset(corpus), corpus / "shards", samples_per_shard=1)
        return lambda **form: tar.Dataset(corpus / "shards", **form)
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
        from espnet3.components.data.parquet_writer import write_parquet_shards
        from espnet3.components.data.sources import parquet

        write_parquet_shards(kaldi.Dataset(corpus), corpus / "parquet", samples_per_shard=1)
        return lambda **form: parquet.Dataset(corpus / "parquet", **form)
    if request.param == "huggingface":
        datasets = pytest.importorskip("datasets")
        from espnet3.components.data.sources import huggingface

        table = datasets.Dataset.from_dict({"id": ["a"], "audio": [str(corpus / "a.flac")]})
        table.save_to_disk(corpus / "hf")
        return lambda **form: huggingface.Dataset(corpus / "hf", **form)
    lhotse = pytest.importorskip("lhotse")
    from espnet3.components.data.sources import lhotse as source

    recording = lhotse.Recording.from_file(corpus / "a.flac")
    lhotse.CutSet.from_cuts([recording.to_cut()]).to_file(corpus / "cuts.jsonl")
    return lambda **form: source.Dataset(corpus / "cuts.jsonl", **form)


def test_each_source_resamples_and_mixes_where_that_is_asked_for(make):
    dataset = make(**WANTED)
    sample = dataset[0]
    assert sample["sample_rate"] == 16000
    assert sample["speech"].dtype == np.float32
    assert sample["speech"].shape == (8000,)
    middle = slice(800, -800)
    assert sample["speech"][middle] == pytest.approx(0.75 * tone(0.5)[middle], abs=2e-4)
    assert list(dataset.durations()) == [0.5]


def test_each_source_keeps_what_there_is_by_default(make):
    sample = make()[0]
    assert sample["sample_rate"] == 48000
    assert sample["speech"].shape == (24000, 2)


def test_each_source_refuses_another_rate_and_more_channels_where_one_is_named(make):
    with pytest.raises(ValueError, match="48000 Hz, but sample_rate is 16000"):
        make(sample_rate=16000)[0]
    with pytest.raises(ValueError, match=r"has 2 channels, but channel is only.*channel: mix"):
        make(channel="only")[0]


def test_the_form_is_part_of_the_fingerprint(make):
    prints = [
        make(sample_rate=rate, channel=channel, resample=resample).fingerprint()
        for rate, channel, resample in
        [(None, None, False), (16000, None, False), (16000, None, True), (16000, "mix", True)]
    ]  # fmt: skip
    assert len(set(prints)) == 4


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"resample": True}, "resample is true, but sample_rate is not set.*sample_rate: 16000"),
        ({"resample": 16000}, "resample is 16000, but must be true or false.*sample_rate: 16000"),
        ({"sample_rate": "16k"}, "sample_rate is '16k', of type str.*sample_rate: 16000"),
        ({"sample_rate": 0}, "sample_rate is 0, but must be at least 1"),
        ({"channel": "left"}, "channel is 'left'.*one of: mix, only.*channel: 0"),
        ({"channel": True}, "channel is True, of type bool"),
        ({"channel": -1}, "channel is -1, but must be at least 0"),
    ],
)
def test_a_wrong_option_is_refused_with_what_to_write(corpus, options, told):
    with pytest.raises(ConfigError, match=told):
        kaldi.Dataset(corpus, **options)


def test_the_wish_about_unreadable_lengths_passes_through_datasets_of_datasets(corpus):
    (corpus / "wav.scp").write_text(f"a {corpus}/a.flac\nb {corpus}/none.flac\n")

    class Silent:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return {}

        def durations(self):
            return [2.0]

    dataset = TransformedDataset(CombinedDataset([kaldi.Dataset(corpus), Silent()]))
    assert list(durations_of(dataset, unreadable=0.0)) == [0.5, 0.0, 2.0]
    with pytest.raises(ValueError, match=r"none\.flac does not exist"):
        durations_of(dataset)


def test_settings_without_resampling_are_as_they_were():
    assert AudioForm(16000, 0).settings() == {"sample_rate": 16000, "channel": 0}
