import gc
import gzip
import io
import json
import multiprocessing
import os
import pickle
import subprocess
import tarfile

import numpy as np
import pytest
import soundfile

from espnet3.components.data.data_organizer import DataOrganizer
from espnet3.components.data.dataset import durations_of, fingerprint_of
from espnet3.components.data.errors import AudioError, DataError
from espnet3.components.data.sources import shard_source
from espnet3.components.data.sources.tar import Dataset
from espnet3.errors import ConfigError, RecordError
from tests.helpers import clean_process


def audio(seconds=0.1, kind="FLAC", seed=0):
    n_samples = round(seconds * 16000)
    samples = np.random.default_rng(seed).integers(-9000, 9000, n_samples, dtype=np.int16)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, 16000, format=kind)
    return buffer.getvalue(), (samples / 32768).astype(np.float32)


def write_tar(path, members):
    """Write a tar of pairs of name and content; a `TarInfo` is added as it is."""
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = data.encode() if isinstance(data, str) else data
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def write_items(path, ids, seconds=0.1):
    members = []
    for i, id in enumerate(ids):
        data, _ = audio(seconds, seed=i)
        members += [(f"{id}.flac", data), (f"{id}.txt", f"text of {id}\n")]
    return write_tar(path, members)


def problem(error, *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        Dataset(*args, **kwargs)
    return str(caught.value)


# Samples


def test_members_with_one_key_are_one_sample(awkward):
    flac, samples = audio(0.25)
    wav, other = audio(0.5, "WAV", seed=1)
    path = write_tar(
        awkward / "a.tar",
        [
            ("./b.flac", flac), ("./b.json", '{"speaker_id": 3, "lang": "de", "no": null}'),
            ("./b.txt", "zwei Wörter\n"),
            ("dir/a.WAV", wav), ("dir/a.txt", ""), ("dir/a.pyd", b"\0"),
        ],
    )  # fmt: skip
    dataset = Dataset(path)
    assert len(dataset) == 2
    sample = dataset[0]
    assert np.array_equal(sample.pop("speech"), samples)
    assert sample == {
        "utt_id": "b", "speaker": 3, "lang": "de", "text": "zwei Wörter", "sample_rate": 16000,
    }  # fmt: skip
    sample = dataset[-1]
    assert np.array_equal(sample.pop("speech"), other)
    assert sample == {"utt_id": "dir/a", "text": "", "sample_rate": 16000}
    assert durations_of(dataset).tolist() == [0.25, 0.5]
    with pytest.raises(IndexError):
        dataset[2]


def test_a_tar_of_gnu_tar_is_read_without_being_unpacked(tmp_path):
    folder = tmp_path / ("long " * 30)
    folder.mkdir()
    flac, samples = audio()
    for name in ("b", "a-b", "a"):
        (folder / f"{name}.flac").write_bytes(flac)
        (folder / f"{name}.txt").write_text(name)
    command = ["tar", "--sort=name", "-cf", "x.tar", "-C", tmp_path, folder.name]
    subprocess.run(command, cwd=tmp_path, check=True)
    before = sorted(os.listdir(tmp_path))
    dataset = Dataset(tmp_path / "x.tar")
    assert [dataset[i]["text"] for i in range(3)] == ["a-b", "a", "b"]
    assert np.array_equal(dataset[1]["speech"], samples)
    assert dataset.utt_id(1) == "_".join(f"{folder.name}/a".split())
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "x.tar.index"])


def test_fields_are_named_by_their_endings_or_by_columns(tmp_path):
    noisy, speech = audio(0.2)
    clean, target = audio(0.2, "WAV", seed=1)
    tokens = io.BytesIO()
    np.save(tokens, np.array([3, 1, 2]))
    path = write_tar(
        tmp_path / "a.tar",
        [
            ("a.noisy.flac", noisy), ("a.clean.wav", clean), ("a.Tokens.npy", tokens.getvalue()),
            ("a.json", '{"words": "x y", "utt_id": "real.id"}'), ("a.bin", b"raw"),
            ("a.align.json", "[1, 2]"),
        ],
    )  # fmt: skip
    assert problem(ConfigError, path).endswith("columns: {speech: noisy.flac}")
    columns = {"speech": "noisy.flac", "text": "words", "blob": "bin"}
    sample = Dataset(path, columns=columns)[0]
    assert np.array_equal(sample.pop("speech"), speech)
    assert np.array_equal(sample.pop("clean"), target)
    assert sample.pop("Tokens").tolist() == [3, 1, 2]
    assert sample == {
        "utt_id": "real.id", "text": "x y", "blob": b"raw", "align": [1, 2], "sample_rate": 16000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"text": "txr"}, "Did you mean 'txt'? It has: flac, txt."),
        ({"speech": "txt"}, "columns.speech is 'txt', which is no audio"),
        ({"utt_id": "txt"}, "Remove columns.utt_id."),
        ("text", "Write: columns: {speech: flac, text: txt}"),
    ],
)
def test_a_wrong_column_says_what_to_write(tmp_path, columns, expected):
    path = write_items(tmp_path / "a.tar", "a")
    assert expected in problem(ConfigError, path, columns=columns)


def test_shards_are_one_dataset_and_tell_where_items_are(tmp_path):
    for i, ids in enumerate(["abc", "d", "ef"]):
        write_items(tmp_path / f"t-{i:02d}.tar", ids, seconds=0.1 * (i + 1))
    dataset = Dataset("t-{00..02}.tar", recipe_dir=tmp_path, sample_rate=16000, channel=0)
    assert [dataset[i]["utt_id"] for i in range(6)] == list("abcdef")
    assert dataset.locality().tolist() == [0, 0, 0, 1, 2, 2]
    assert dataset.shard_of(3) == tmp_path / "t-01.tar"
    assert np.allclose(dataset.durations(), [0.1, 0.1, 0.1, 0.2, 0.3, 0.3])
    organizer = DataOrganizer(
        recipe_dir=tmp_path,
        train=[{"data_src": "tar", "data_src_args": {"path": "t-{00..02}.tar"}}],
    )
    assert organizer.train[5]["text"] == "text of f"


def test_the_rate_and_channel_are_checked(tmp_path):
    path = write_items(tmp_path / "a.tar", "a")
    with pytest.raises(AudioError, match=r"a.tar, item 'a': .* 16000 Hz, but sample_rate is 8000"):
        Dataset(path, sample_rate=8000)[0]
    with pytest.raises(AudioError, match="Write a number below 1, such as channel: 0"):
        Dataset(path, channel=1)[0]
    assert "sample_rate: 16000" in problem(ConfigError, path, sample_rate="16k")


# The index


def test_the_index_is_made_once_and_again_when_the_shard_changes(tmp_path, caplog):
    caplog.set_level("INFO")
    path = write_items(tmp_path / "a.tar", "ab")
    Dataset(path)
    index = tmp_path / "a.tar.index"
    first = index.stat()
    assert "Indexing 1 of 1 shards" in caplog.text
    caplog.clear()
    Dataset(path)
    assert index.stat().st_ino == first.st_ino
    assert caplog.text == ""
    write_items(path, "abc")
    assert len(Dataset(path)) == 3
    os.utime(path, ns=(1, 1))
    before = index.stat().st_ino
    Dataset(path)
    assert index.stat().st_ino != before


@pytest.mark.parametrize("content", [b"", b"espnet3-columns-1\n{}\n", b"x" * 500])
def test_a_damaged_index_is_made_anew(tmp_path, content):
    path = write_items(tmp_path / "a.tar", "ab")
    Dataset(path)
    (tmp_path / "a.tar.index").write_bytes(content)
    assert Dataset(path)[1]["utt_id"] == "b"


def test_indexes_go_to_a_folder_of_the_users_choice(tmp_path):
    (tmp_path / "x").mkdir()
    paths = [write_items(tmp_path / "a.tar", "a"), write_items(tmp_path / "x/a.tar", "bc")]
    dataset = Dataset(paths, index_dir=tmp_path / "new/indexes")
    assert [dataset[i]["utt_id"] for i in range(3)] == list("abc")
    assert len(os.listdir(tmp_path / "new/indexes")) == 2
    assert not (tmp_path / "a.tar.index").exists()


def test_indexes_of_a_read_only_folder_go_to_the_cache(tmp_path, monkeypatch):
    folder = tmp_path / "read only"
    folder.mkdir()
    path = write_items(folder / "a.tar", "a")
    if os.geteuid() == 0:
        if subprocess.run(["mount", "--bind", "-o", "ro", folder, folder]).returncode:
            pytest.skip("this sandbox does not allow mounts")
    else:
        folder.chmod(0o555)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    try:
        assert Dataset(path)[0]["utt_id"] == "a"
        assert Dataset(path)[0]["utt_id"] == "a"
        assert os.listdir(folder) == ["a.tar"]
        assert len(os.listdir(tmp_path / "cache/espnet3/shard_index")) == 1
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert problem(DataError, path).endswith("data_src_args: {index_dir: FOLDER}")
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", "-l", folder], check=True)
        folder.chmod(0o755)


def test_the_fingerprint_changes_with_the_text_and_not_with_the_time(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.flac", audio()[0]), ("a.txt", "cat")])
    prints = [fingerprint_of(Dataset(path))]
    os.utime(path, ns=(1, 1))
    prints.append(fingerprint_of(Dataset(path)))
    prints.append(fingerprint_of(Dataset(path, channel=0)))
    write_tar(path, [("a.flac", audio()[0]), ("a.txt", "dog")])
    prints.append(fingerprint_of(Dataset(path)))
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


# Handles and processes


def test_few_files_are_open_at_a_time(tmp_path):
    for i in range(100):
        write_items(tmp_path / f"t-{i:03d}.tar", [f"u{i}"], seconds=0.01)
    gc.collect()  # what tests before this one left
    n_before = len(os.listdir("/proc/self/fd"))
    dataset = Dataset(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == n_before
    for i in np.random.default_rng(0).permutation(100):
        assert dataset[i]["utt_id"] == f"u{i}"
    n_open = len(os.listdir("/proc/self/fd")) - n_before
    assert 0 < n_open <= 2 * shard_source._MAX_OPEN
    assert len(pickle.loads(pickle.dumps(dataset))) == 100
    del dataset
    assert len(os.listdir("/proc/self/fd")) == n_before


def read_many(dataset, seed, n_reads, queue):
    order = np.random.default_rng(seed).integers(0, len(dataset), n_reads)
    queue.put(all(dataset[i]["text"] == f"text of u{i}" for i in order.tolist()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_read_one_shard_do_not_disturb_each_other(tmp_path, method):
    path = write_items(tmp_path / "a.tar", [f"u{i}" for i in range(50)], 0.01)
    assert clean_process.call(read_in_processes, path, method) == [True] * 3


def read_in_processes(path, method):
    dataset = Dataset(path)
    dataset[0]  # open before the fork
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    workers = [
        context.Process(target=read_many, args=(dataset, seed, 400, queue)) for seed in range(2)
    ]
    for worker in workers:
        worker.start()
    read_many(dataset, 3, 400, queue)
    answers = [queue.get(timeout=60) for _ in range(3)]
    for worker in workers:
        worker.join()
    return answers


# What can be wrong


def link(name, kind, target="/etc/passwd"):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (tarfile.SYMTYPE, "'b.txt' is a symbolic link, which is not followed"),
        (tarfile.LNKTYPE, "'b.txt' is a hard link"),
        (tarfile.FIFOTYPE, "'b.txt' is a device, pipe or sparse file"),
    ],
)
def test_links_are_refused(tmp_path, kind, expected):
    path = write_tar(
        tmp_path / "a.tar",
        [("a.flac", audio()[0]), ("b.flac", audio()[0]), (link("b.txt", kind), b"")],
    )
    message = problem(DataError, path)
    assert expected in message
    assert message.endswith("tar --dereference --hard-dereference --sort=name -cf SHARD.tar FOLDER")
    assert not (tmp_path / "a.tar.index").exists()


def test_what_is_no_tar_is_named(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"")
    assert problem(DataError, tmp_path / "a.tar") == (
        f"{tmp_path}/a.tar is empty. Copy or make it again."
    )
    (tmp_path / "b.tar").write_bytes(audio()[0] * 3)
    assert "b.tar is no tar file. Name the shards only" in problem(DataError, tmp_path / "b.tar")
    whole = write_items(tmp_path / "c.tar", "a").read_bytes()
    (tmp_path / "d.tar").write_bytes(gzip.compress(whole))
    assert "Unpack it once: gunzip d.tar" in problem(DataError, tmp_path / "d.tar")


def test_a_shard_that_is_cut_short_names_the_member(tmp_path):
    path = write_items(tmp_path / "a.tar", "abc")
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        members = {member.name: member for member in tar}
    audio_start = members["b.flac"].offset_data
    path.write_bytes(whole[: audio_start + 100])
    assert problem(DataError, path) == (
        f"{path} is cut short inside its member 'b.flac'. Copy or make it again."
    )
    path.write_bytes(whole[: audio_start - 200])  # inside a header
    assert "is damaged after its member 'a.txt'" in problem(DataError, path)
    path.write_bytes(whole[: audio_start - 512])  # between two members
    message = problem(DataError, path)
    assert "is cut short after its member 'a.txt', without the mark of its end" in message
    assert message.endswith("head -c 1024 /dev/zero >> a.tar")
    with path.open("ab") as file:
        file.write(bytes(1024))  # as the message says
    assert len(Dataset(path)) == 1


def test_every_cut_is_found(tmp_path):
    path = write_items(tmp_path / "a.tar", "ab", seconds=0.02)
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + 512
    for cut in [*range(1, end, 97), *range(512, end, 512)]:
        path.write_bytes(whole[:cut])
        problem(DataError, path)
    path.write_bytes(whole[: end + 512])
    assert len(Dataset(path)) == 2


def test_damage_in_the_middle_does_not_pass_for_the_end(tmp_path):
    path = write_items(tmp_path / "a.tar", "abc")
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        start = tar.getmember("b.txt").offset
    data[start : start + 100] = b"\xff" * 100
    path.write_bytes(data)
    assert f"is damaged after its member 'b.flac', at byte {start}" in problem(DataError, path)


def test_tars_that_were_joined_by_cat_are_refused(tmp_path):
    path = write_items(tmp_path / "a.tar", "a")
    path.write_bytes(path.read_bytes() + write_items(tmp_path / "b.tar", "b").read_bytes())
    assert "tar --concatenate -f A.tar B.tar" in problem(DataError, path)


@pytest.mark.parametrize(
    ("members", "error", "expected"),
    [
        (["a.flac", "b.txt"], DataError, "The first is 'b', with txt. Leave such items out"),
        (["a.flac", "a.wav"], DataError, "The first is 'a', with flac, wav. Leave such"),
        (["a.flac", "b.flac", "a.txt"], DataError, "Write them in order: tar --sort=name"),
        (["a.flac", "a.txt", "a.txt"], DataError, "'a.txt' is there twice"),
        (["a.flac", "a.json"], RecordError, "member 'a.json' is not JSON"),
        (["a.txt"], ConfigError, "Write the one to take: columns: {speech: flac}"),
        (["a b.flac", "a_b.flac"], RecordError, "The id 'a_b' is that of an item of "),
    ],
)
def test_items_that_are_wrong_are_named_with_their_shard(tmp_path, members, error, expected):
    path = write_tar(
        tmp_path / "a.tar",
        [(n, audio()[0] if n.endswith(("flac", "wav")) else "text") for n in members],
    )
    message = problem(error, path)
    assert str(path) in message
    assert expected in message


def test_an_id_in_two_shards_is_refused(tmp_path):
    write_items(tmp_path / "a.tar", "abc")
    write_items(tmp_path / "b.tar", "dbe")
    message = problem(RecordError, tmp_path)
    assert message.startswith(
        f"{tmp_path}/b.tar: The id 'b' is that of an item of {tmp_path}/a.tar"
    )
    assert "leave one of the two shards out" in message


def test_json_that_is_no_object_or_has_a_bad_id_is_named(tmp_path):
    for text, expected in [
        ("[1]", 'Write: {"text": "hello"}'),
        ('{"utt_id": "a b"}', "a.tar, item"),
    ]:
        write_tar(tmp_path / "a.tar", [("a.flac", audio()[0]), ("a.json", text)])
        assert expected in problem(RecordError, tmp_path / "a.tar")


def test_audio_that_cannot_be_read_costs_only_its_item(tmp_path):
    path = write_tar(
        tmp_path / "a.tar",
        [("a.flac", audio()[0]), ("b.flac", b"no audio"), ("c.flac", audio()[0])],
    )
    dataset = Dataset(path)
    assert dataset[2]["utt_id"] == "c"
    with pytest.raises(AudioError, match=r"a.tar, item 'b': audio of 8 bytes cannot be read"):
        dataset[1]
    with pytest.raises(AudioError) as caught:
        dataset.durations()
    assert "The durations of 1 of 3 items could not be read" in str(caught.value)
    assert f"The first is {path}, item 'b'. Leave them out" in str(caught.value)


def test_a_member_that_cannot_be_decoded_is_named(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.flac", audio()[0]), ("a.txt", b"\xff")])
    with pytest.raises(DataError, match=r"a.tar, item 'a', txt: .* Make it again"):
        Dataset(path)[0]
    array = io.BytesIO()
    np.save(array, np.array([{}], dtype=object), allow_pickle=True)
    path = write_tar(tmp_path / "b.tar", [("a.flac", audio()[0]), ("a.x.npy", array.getvalue())])
    with pytest.raises(DataError, match="allow_pickle=False"):
        Dataset(path)[0]


def test_a_shard_that_is_replaced_while_it_is_read_is_told(tmp_path):
    path = write_items(tmp_path / "a.tar", "abc")
    dataset = Dataset(path)
    write_items(path, "abcd")
    with pytest.raises(DataError, match=r"has changed since the run began. Start again"):
        dataset[0]


def test_memory_does_not_grow_with_python_objects(tmp_path):
    import tracemalloc

    ids = [f"u{i:05d}" for i in range(2000)]
    data, _ = audio(0.01)
    path = write_tar(tmp_path / "a.tar", [(f"{id}.flac", data) for id in ids])
    Dataset(path)
    tracemalloc.start()
    dataset = Dataset(path)
    dataset[1999]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held / 2000 < 24


def test_the_json_of_writers_such_as_emilia_is_understood(tmp_path):
    fields = {"id": "x", "wav": "x.mp3", "text": "hi", "duration": 0.1, "speaker": "s"}
    path = write_tar(
        tmp_path / "a.tar", [("x.json", json.dumps(fields)), ("x.wav", audio(0.1, "WAV")[0])]
    )
    sample = Dataset(path)[0]
    assert (sample["text"], sample["speaker"], sample["wav"]) == ("hi", "s", "x.mp3")
