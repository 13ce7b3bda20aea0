"""Both kinds of shards: what was written comes back, whatever happened in between."""

import os
import signal
import tarfile
import time

import numpy as np
import pytest
import soundfile

from espnet3.components.data.dataset_builder import DatasetBuilder, build_dataset
from espnet3.components.data.errors import DataError
from espnet3.components.data.parquet_writer import write_parquet_shards
from espnet3.components.data.shard_writer import are_shards_written
from espnet3.components.data.sources import parquet, tar
from espnet3.components.data.tar_writer import write_tar_shards
from espnet3.errors import ConfigError, RecordError, StaleRunError
from tests.helpers import clean_process

KINDS = {"tar": (write_tar_shards, tar.Dataset), "parquet": (write_parquet_shards, parquet.Dataset)}


@pytest.fixture(params=KINDS)
def kind(request):
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    return KINDS[request.param]


class Corpus(list):
    """Samples in memory; `read` counts what was asked for."""

    def __init__(self, samples, fingerprint="f"):
        super().__init__(samples)
        self.read = []
        self._fingerprint = fingerprint

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)

    def fingerprint(self):
        return self._fingerprint


def speech(seconds=0.1, seed=0, n_channels=1):
    shape = (round(seconds * 16000), n_channels)
    values = np.random.default_rng(seed).integers(-(2**15), 2**15, shape, dtype=np.int16)
    return (values / 32768).astype(np.float32)[:, 0 if n_channels == 1 else slice(None)]


def corpus(n=10, **kwargs):
    return Corpus(
        [
            {"utt_id": f"u{i}", "speech": speech(0.1, i), "sample_rate": 16000, "text": f"t {i}"}
            for i in range(n)
        ],
        **kwargs,
    )


def same(one, other) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    return type(one) is type(other) and one == other


def assert_same(sample, expected):
    assert {k for k in sample if k != "duration"} == {k for k in expected if k != "duration"}
    for name, value in expected.items():
        assert same(sample[name], value), name


# What comes back


def test_samples_come_back_exactly(kind, awkward):
    write, read = kind
    samples = [
        {"utt_id": "utt.0", "speech": speech(0.2), "sample_rate": 16000, "text": "é\nzwei"},
        {"utt_id": "../a/b", "speech": speech(0.1, 1, 2), "sample_rate": 8000, "text": "ends\n"},
        {"utt_id": "x" * 300, "speech": speech(0.1), "sample_rate": 16000, "speaker": "s",
         "n": 3, "score": 0.5, "good": True, "tags": ["a", {"b": None}], "empty": {},
         "tokens": np.array([[1, 2], [3, 4]]), "a.b": np.float32([1.5])},
        {"utt_id": "%2E", "speech": np.zeros(1, np.float32), "sample_rate": 16000, "text": ""},
    ]  # fmt: skip
    paths = write(Corpus(samples), awkward / "new", name="train")
    assert [path.parent for path in paths] == [awkward / "new"]
    dataset = read(awkward / "new")
    assert len(dataset) == 4
    for i, expected in enumerate(samples):
        assert_same(dataset[i], expected)
    assert dataset.durations().tolist() == [0.2, 0.2, 0.1, 1 / 16000]
    assert dataset.utt_id(1) == "../a/b"


def test_full_scale_and_24_bits_come_back_exactly(kind, tmp_path):
    write, read = kind
    values = np.array([-(2**23), 2**23 - 1, 1, -1, 0, 12345], dtype=np.float64) / 2**23
    sample = {"utt_id": "a", "speech": values.astype(np.float32), "sample_rate": 16000}
    write(Corpus([sample]), tmp_path, bits=24)
    assert np.array_equal(read(tmp_path)[0]["speech"], sample["speech"])
    integers = {"utt_id": "a", "speech": np.array([-(2**15), 5], np.int16), "sample_rate": 16000}
    write(Corpus([integers]), tmp_path / "b")
    assert read(tmp_path / "b")[0]["speech"].tolist() == [-1.0, 5 / 2**15]


def test_values_beyond_full_scale_are_clipped_with_a_warning(tmp_path, caplog):
    sample = {"utt_id": "a", "speech": np.float32([1.0, 1.5, -2.0]), "sample_rate": 16000}
    write_tar_shards(Corpus([sample]), tmp_path)
    assert tar.Dataset(tmp_path)[0]["speech"].tolist() == [1 - 2**-15, 1 - 2**-15, -1.0]
    assert "Clipped 2 of 3 values" in caplog.text


@pytest.mark.parametrize("audio_format", ["wav", "ogg", "opus"])
def test_other_formats_are_written(kind, tmp_path, audio_format):
    write, read = kind
    write(corpus(3), tmp_path, audio_format=audio_format)
    dataset = read(tmp_path)
    assert np.allclose(dataset.durations(), 0.1, atol=0.02)
    assert dataset[2]["speech"].shape == pytest.approx((1600,), abs=400)


def test_others_can_read_the_tars(tmp_path):
    (path,) = write_tar_shards(corpus(2), tmp_path)
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["u0.flac", "u0.txt", "u1.flac", "u1.txt"]
        samples, rate = soundfile.read(archive.extractfile("u1.flac"), dtype="float32")
    assert rate == 16000
    assert np.array_equal(samples, speech(0.1, 1))


def test_datasets_can_read_the_tables(tmp_path):
    datasets = pytest.importorskip("datasets")
    paths = write_parquet_shards(corpus(2), tmp_path)
    table = datasets.Dataset.from_parquet([str(p) for p in paths], cache_dir=str(tmp_path / "c"))
    row = table.cast_column("audio", datasets.Audio(decode=False))[1]
    assert (row["utt_id"], row["text"], row["duration"]) == ("u1", "t 1", 0.1)
    assert row["audio"]["bytes"][:4] == b"fLaC"


# How it is cut


@pytest.mark.parametrize(
    ("size", "counts"),
    [
        ({"samples_per_shard": 4}, [4, 4, 2]),
        ({"samples_per_shard": 5}, [5, 5]),
        ({"shard_seconds": 0.25}, [3, 3, 3, 1]),
        ({"shard_seconds": 0.01}, [1] * 10),
        ({}, [10]),
    ],
)
def test_shards_are_of_the_size_that_was_asked_for(kind, tmp_path, size, counts):
    write, read = kind
    paths = write(corpus(), tmp_path, **size)
    assert np.bincount(read(tmp_path).locality()).tolist() == counts
    assert [path.stem for path in paths] == [f"shard-{i:06d}" for i in range(len(counts))]
    assert [(p.parent / f"{p.name}.index").exists() for p in paths] == [True] * len(counts)


def test_the_pattern_to_write_is_shown(tmp_path, caplog):
    caplog.set_level("INFO")
    write_tar_shards(corpus(), tmp_path, samples_per_shard=4, name="dev")
    pattern = f"{tmp_path}/dev-{{000000..000002}}.tar"
    assert "10 samples in 3 shards" in caplog.text
    assert f"path: {pattern}" in caplog.text
    assert len(tar.Dataset(pattern)) == 10


def test_several_threads_write_the_same_files(kind, tmp_path):
    write, _ = kind
    one = write(corpus(70), tmp_path / "1", samples_per_shard=20)
    many = write(corpus(70), tmp_path / "2", samples_per_shard=20, n_threads=3)
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in many]


def test_row_groups_are_small(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    loud = Corpus(
        [{"utt_id": f"u{i}", "speech": speech(5, i), "sample_rate": 16000} for i in range(30)]
    )
    (path,) = write_parquet_shards(loud, tmp_path)
    metadata = pq.ParquetFile(path).metadata
    sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    assert max(sizes) < 1.3 * 2**20
    assert min(sizes[:-1]) > 0.5 * 2**20


# Interrupted


class Deadly(Corpus):
    """Kills its process when an item is asked for."""

    deadly_item = None

    def __getitem__(self, index):
        if index == self.deadly_item:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def write_and_die(write, dataset, folder, **options):
    code = clean_process.exit_code(write, dataset, folder, **options)
    assert code == -signal.SIGKILL


def test_a_killed_writer_goes_on_where_it_was(kind, tmp_path):
    write, read = kind
    options = {"samples_per_shard": 3}
    whole = write(corpus(), tmp_path / "whole", **options)
    dataset = Deadly(corpus())
    dataset.deadly_item = 7
    write_and_die(write, dataset, tmp_path / "cut", **options)
    with pytest.raises(DataError) as caught:
        read(tmp_path / "cut")
    assert "are not all written: shard.shards.json says so" in str(caught.value)
    assert "python run.py --stages create_dataset" in str(caught.value)
    assert not are_shards_written(tmp_path / "cut")
    dataset.deadly_item = None
    paths = write(dataset, tmp_path / "cut", **options)
    assert dataset.read == [6, 7, 8, 9]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in whole]
    assert are_shards_written(tmp_path / "cut")
    assert write(dataset, tmp_path / "cut", **options) == paths
    assert len(dataset.read) == 4
    assert len(read(tmp_path / "cut")) == 10


def test_what_a_killed_writer_left_is_removed_later(tmp_path):
    leftovers = [tmp_path / f".shard-000000.tar.tmp-{i}-0123abcd" for i in (1, 2)]
    for file in [*leftovers, tmp_path / ".other.tmp-1-0123abcd"]:
        file.write_bytes(b"x")
    os.utime(leftovers[0], times=(time.time() - 7200,) * 2)
    write_tar_shards(corpus(2), tmp_path)
    assert [file.exists() for file in leftovers] == [False, True]  # the second may be alive
    assert (tmp_path / ".other.tmp-1-0123abcd").exists()


def test_a_shard_that_was_deleted_is_written_again(tmp_path):
    paths = write_tar_shards(corpus(), tmp_path, samples_per_shard=3)
    before = [path.read_bytes() for path in paths]
    paths[2].unlink()
    assert not are_shards_written(tmp_path)
    dataset = corpus()
    assert write_tar_shards(dataset, tmp_path, samples_per_shard=3) == paths
    assert dataset.read == [6, 7, 8, 9]
    assert [path.read_bytes() for path in paths] == before


@pytest.mark.parametrize(
    ("dataset", "options", "expected"),
    [
        (corpus(fingerprint="g"), {}, "dataset: 'f' -> 'g'"),
        (corpus(11), {}, "n_items: 10 -> 11"),
        (corpus(), {"samples_per_shard": 4}, "size.samples_per_shard: 3 -> 4"),
        (corpus(), {"audio_format": "wav"}, "form.audio_format: 'flac' -> 'wav'"),
    ],
)
def test_shards_of_other_data_are_not_taken_for_these(kind, tmp_path, dataset, options, expected):
    write, _ = kind
    write(corpus(), tmp_path, samples_per_shard=3)
    with pytest.raises(StaleRunError) as caught:
        write(dataset, tmp_path, **{"samples_per_shard": 3, **options})
    assert expected in str(caught.value)
    assert "Remove them: rm shard-*" in str(caught.value)


def test_a_damaged_plan_is_told(tmp_path):
    write_tar_shards(corpus(2), tmp_path)
    (tmp_path / "shard.shards.json").write_text("{")
    with pytest.raises(StaleRunError, match=r"is damaged .* Remove it and the shards"):
        write_tar_shards(corpus(2), tmp_path)


def test_two_sets_share_a_folder(kind, tmp_path):
    write, read = kind
    write(corpus(3), tmp_path, name="train")
    (path,) = write(corpus(2), tmp_path, name="train-dev")
    assert len(read(path)) == 2
    assert are_shards_written(tmp_path, "train")
    assert not are_shards_written(tmp_path, "test")
    assert not are_shards_written(tmp_path / "nowhere")


def test_a_builder_of_a_recipe_writes_shards_once(tmp_path):
    class Builder(DatasetBuilder):
        def is_built(self, data_dir):
            return are_shards_written(f"{data_dir}/train")

        def build(self, data_dir):
            write_tar_shards(corpus(), f"{data_dir}/train")

    arguments = {"recipe_dir": tmp_path, "context": {"data_dir": tmp_path / "data"}}
    assert build_dataset(Builder(), **arguments)[-1] == "Builder.build: done"
    assert "skipped" in build_dataset(Builder(), **arguments)[-1]
    assert len(tar.Dataset(tmp_path / "data/train")) == 10


# What can be wrong

GOOD = {"utt_id": "a", "speech": speech(), "sample_rate": 16000}


@pytest.mark.parametrize(
    ("sample", "error", "expected"),
    [
        ({**GOOD, "speech": None}, DataError, "Item 1 has no 'speech'; it has: utt_id, speech"),
        ({"utt_id": "a", "speech": speech()}, DataError, "Item 1 has no 'sample_rate'"),
        ({**GOOD, "utt_id": "a b"}, RecordError, "Item 1: The id 'a b' holds"),
        ({**GOOD, "speech": np.zeros((1, 2, 3))}, DataError, "Return [samples] or [samples, ch"),
        ({**GOOD, "speech": np.array([np.nan])}, DataError, "its speech holds NaN or infinity"),
        ({**GOOD, "speech": np.zeros(9, np.int64)}, DataError, "return float32, full scale 1"),
        ({**GOOD, "x": {1, 2}}, DataError, "Item 1 (a) cannot be written"),
        ({**GOOD, "x": np.array([None])}, DataError, "Item 1: x cannot be written"),
        ({**GOOD, "speech": []}, DataError, "Item 1 (a) has no audio: 0 samples. Leave it out."),
        ("text", DataError, "Item 1 is 'text', not a dict"),
    ],
)
def test_a_wrong_sample_is_named(kind, tmp_path, sample, error, expected):
    write, _ = kind
    with pytest.raises(error) as caught:
        write(Corpus([GOOD | {"utt_id": "b"}, sample]), tmp_path)
    assert expected in str(caught.value)
    assert os.listdir(tmp_path) == ["shard.shards.json"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"audio_format": "flak"}, "Did you mean 'flac'? Write one of: flac, wav, ogg, opus."),
        ({"bits": 8}, "Write: bits: 16"),
        ({"shard_seconds": 1, "samples_per_shard": 1}, "Remove one."),
        ({"shard_seconds": 0}, "must be above 0"),
        ({"samples_per_shard": -1}, "must be above 0"),
        ({"name": "a/b"}, "Write: name: train"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(kind, tmp_path, options, expected):
    write, _ = kind
    with pytest.raises(ConfigError) as caught:
        write(corpus(), tmp_path, **options)
    assert expected in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_empty_dataset_is_refused(kind, tmp_path):
    with pytest.raises(DataError, match=r"has no items. Check how it was made"):
        kind[0](Corpus([]), tmp_path)


def test_an_id_that_comes_twice_is_found_when_the_shards_are_read(kind, tmp_path):
    write, read = kind
    write(Corpus([GOOD, {**GOOD, "utt_id": "b"}, GOOD]), tmp_path, samples_per_shard=1)
    with pytest.raises(RecordError, match="The id 'a' is that of an item of"):
        read(tmp_path)


def test_a_field_of_two_types_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match="field 'x' of the samples from 'a' to 'b' is not of one"):
        write_parquet_shards(
            Corpus([{**GOOD, "x": 1}, {**GOOD, "utt_id": "b", "x": "y"}]), tmp_path
        )
