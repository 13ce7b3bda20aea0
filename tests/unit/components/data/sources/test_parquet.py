import io
import multiprocessing
import os
import sys

import numpy as np
import pytest
import soundfile

from espnet3.components.data.dataset import durations_of, fingerprint_of
from espnet3.components.data.errors import AudioError, DataError
from espnet3.components.data.sources.parquet import Dataset
from espnet3.errors import ConfigError, MissingExtraError, RecordError
from tests.helpers import clean_process

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def audio(seconds=0.1, seed=0):
    n_samples = round(seconds * 16000)
    samples = np.random.default_rng(seed).integers(-9000, 9000, n_samples, dtype=np.int16)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, 16000, format="FLAC")
    return buffer.getvalue()


def write(file, rows_per_group=2, **columns):
    pq.write_table(pa.table(columns), file, row_group_size=rows_per_group)
    return file


def cells(n, seconds=0.1):
    return [{"bytes": audio(seconds, i), "path": None} for i in range(n)]


def problem(error, *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        Dataset(*args, **kwargs)
    return str(caught.value)


def test_rows_are_samples_in_the_order_of_the_shards(awkward):
    write(awkward / "t-0.parquet", audio=cells(5), id=list("abcde"), sentence=["x"] * 5, n=[1] * 5)
    write(awkward / "t-1.parquet", audio=cells(1, 0.2), id=["f"], sentence=[None], n=[2])
    dataset = Dataset("t-{0..1}.parquet", recipe_dir=awkward, sample_rate=16000)
    assert [dataset[i]["utt_id"] for i in range(-6, 0)] == list("abcdef")
    sample = dataset[4]
    assert sample["speech"].shape == (1600,)
    assert {k: v for k, v in sample.items() if k != "speech"} == {
        "utt_id": "e", "text": "x", "n": 1, "sample_rate": 16000,
    }  # fmt: skip
    assert "text" not in dataset[5]
    assert dataset.locality().tolist() == [0] * 5 + [1]
    assert durations_of(dataset).tolist() == [0.1] * 5 + [0.2]


def test_audio_may_be_plain_bytes_or_a_path(tmp_path):
    write(tmp_path / "a.parquet", wav=[audio()])
    sample = Dataset(tmp_path / "a.parquet")[0]
    assert (sample["utt_id"], len(sample["speech"])) == ("a-00000000", 1600)
    (tmp_path / "x.flac").write_bytes(audio(0.3))
    write(tmp_path / "b.parquet", path=["x.flac", "y.flac"])
    dataset = Dataset(tmp_path / "b.parquet")
    assert dataset[0]["speech"].shape == (4800,)
    with pytest.raises(AudioError, match=r"item 'b-00000001': .*y.flac does not exist"):
        dataset[1]


def test_durations_of_the_table_are_taken_and_gaps_filled(tmp_path):
    path = write(tmp_path / "a.parquet", audio=cells(4), duration=[7.0, 8.0, None, 9.0])
    assert Dataset(path).durations().tolist() == [7.0, 8.0, 0.1, 9.0]


def test_columns_may_have_other_names_with_an_index_of_their_own(tmp_path):
    path = write(
        tmp_path / "a.parquet", audio=cells(2), id=["a", "b"], uid=["c", "d"], t=["x", "y"]
    )
    named = Dataset(path, columns={"utt_id": "uid", "text": "t"})
    plain = Dataset(path)
    assert (named[1]["utt_id"], named[1]["text"]) == ("d", "y")
    assert (plain[1]["utt_id"], "text" in plain[1]) == ("b", False)
    assert len(list(tmp_path.glob("a.parquet*.index"))) == 2
    assert fingerprint_of(named) != fingerprint_of(plain)
    assert "Did you mean 'uid'?" in problem(ConfigError, path, columns={"utt_id": "uidd"})


def test_the_fingerprint_changes_with_the_text_and_not_with_the_time(tmp_path):
    path = write(tmp_path / "a.parquet", audio=cells(1), text=["cat"])
    prints = [fingerprint_of(Dataset(path))]
    os.utime(path, ns=(1, 1))
    prints.append(fingerprint_of(Dataset(path)))
    write(path, audio=cells(1), text=["dog"])
    prints.append(fingerprint_of(Dataset(path)))
    assert prints[0] == prints[1] != prints[2]


def test_row_groups_are_read_once_when_rows_come_in_order(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", rows_per_group=5, audio=cells(20))
    dataset = Dataset(path)
    read = []
    original = pq.ParquetFile.read_row_group

    def count(self, group, **kwargs):
        read.append(group)
        return original(self, group, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", count)
    for i in range(20):
        dataset[i]
    assert read == [0, 1, 2, 3]
    small = Dataset(path, cache_mb=0)
    read.clear()
    for i in (0, 1, 19, 0):
        small[i]
    assert read == [0, 3, 0]


def read_all(dataset, queue):
    order = np.random.default_rng(os.getpid()).permutation(len(dataset)).tolist()
    queue.put(all(dataset[i]["utt_id"] == f"u{i}" for i in order))


def test_processes_do_not_disturb_each_other(tmp_path):
    path = write(tmp_path / "a.parquet", audio=cells(60, 0.01), id=[f"u{i}" for i in range(60)])
    assert clean_process.call(read_in_forks, path) == [True] * 3


def read_in_forks(path):
    dataset = Dataset(path, cache_mb=0)
    dataset[0]
    context = multiprocessing.get_context("fork")  # after the parent has read
    queue = context.Queue()
    workers = [context.Process(target=read_all, args=(dataset, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    read_all(dataset, queue)
    answers = [queue.get(timeout=60) for _ in range(3)]
    for worker in workers:
        worker.join()
    return answers


def test_large_row_groups_are_told(tmp_path, caplog, monkeypatch):
    path = write(tmp_path / "a.parquet", audio=cells(2))
    monkeypatch.setattr("espnet3.components.data.sources.parquet._LARGE_GROUP_BYTES", 100)
    Dataset(path)
    assert "Write them again: write_parquet_shards(dataset, FOLDER)" in caplog.text


@pytest.mark.parametrize("cut", [0, 10, 2000, -5])
def test_a_shard_that_is_cut_short_is_named(tmp_path, cut):
    path = write(tmp_path / "a.parquet", audio=cells(2))
    path.write_bytes(path.read_bytes()[:cut])
    message = problem(DataError, path)
    assert message.startswith(f"{path} cannot be read as a Parquet file")
    assert message.endswith("path: FOLDER/*.parquet")


def test_damage_in_a_row_group_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"audio": [audio(0.5, i) for i in range(4)], "duration": [0.5] * 4})
    pq.write_table(table, path, row_group_size=2, use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 400] = b"\xff" * 400
    path.write_bytes(data)
    dataset = Dataset(path)
    assert dataset[1]["speech"].shape == (8000,)
    with pytest.raises(DataError, match=r"a.parquet, row group 1 cannot be read: .* again"):
        dataset[2]


def test_shards_of_different_columns_are_refused(tmp_path):
    write(tmp_path / "a.parquet", audio=cells(1), text=["x"])
    write(tmp_path / "b.parquet", audio=cells(1), sentence=["x"])
    message = problem(DataError, tmp_path)
    assert "b.parquet has the columns speech: audio, text: sentence, but " in message
    assert message.endswith("Name what all have: columns: {FIELD: COLUMN}")


def test_rows_without_audio_or_with_bad_audio_cost_only_themselves(tmp_path):
    rows = [*cells(1), {"bytes": None, "path": None}, {"bytes": b"noise", "path": None}]
    dataset = Dataset(write(tmp_path / "a.parquet", audio=rows))
    assert dataset[0]["utt_id"] == "a-00000000"
    with pytest.raises(AudioError, match=r"row 1 .*: The audio is None, neither .* Leave the row"):
        dataset[1]
    with pytest.raises(AudioError, match="item 'a-00000002': audio of 5 bytes cannot be read"):
        dataset[2]
    with pytest.raises(AudioError, match="durations of 2 of 3 items could not be read"):
        dataset.durations()


def test_ids_are_unique(tmp_path):
    path = write(tmp_path / "a.parquet", audio=cells(2), id=["a", "a"])
    assert "row 1: The id 'a' is that of" in problem(RecordError, path)
    write(tmp_path / "a.parquet", audio=cells(2), id=["a", "b"])
    write(tmp_path / "b.parquet", audio=cells(1), id=["b"])
    assert "The id 'b' is that of an item of" in problem(RecordError, tmp_path)


def test_a_damaged_array_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", **{"audio": cells(1), "x.npy": [b"\x93NUM"]})
    with pytest.raises(DataError, match=r"row 0 .*: x.npy is damaged: .* Make it again"):
        Dataset(path)[0]


def test_without_pyarrow_the_line_that_installs_it_is_shown(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert problem(MissingExtraError, tmp_path).endswith(
        "pip install -c constraints.txt -e '.[parquet]'"
    )
