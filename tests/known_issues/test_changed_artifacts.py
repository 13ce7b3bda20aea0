"""Files of a shard that changed since its commit are noticed, in subfolders and after the merge."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from espnet3.errors import IncompleteRunError
from espnet3.parallel import BaseRunner, use_parallel
from espnet3.shards.merge import join_files
from tests.helpers.detached_parts import DetachedFolder
from tests.helpers.exhaustive import few
from tests.helpers.phrases import RERUN
from tests.helpers.providers import Provider

N_ITEMS, N_SHARDS = 12, 3


class Speak(BaseRunner):
    """Writes a line and a file for each item, and a table of its own."""

    @staticmethod
    def forward(idx):
        return idx

    @staticmethod
    def open_writers(shard_dir):
        (shard_dir / "wav" / "deep").mkdir(parents=True)
        return {"dir": shard_dir, "scp": (shard_dir / "wav.scp").open("w"), "values": []}

    @staticmethod
    def write_record(writers, result):
        path = writers["dir"] / "wav" / ("deep" if result % 2 else "") / f"utt{result}.wav"
        path.write_bytes(b"RIFF" + bytes([result]) * 100)
        writers["scp"].write(f"utt{result} {path.name}\n")
        writers["values"].append(float(result))

    @staticmethod
    def close_writers(writers):
        writers["scp"].close()
        np.save(writers["dir"] / "values.npy", np.array(writers["values"]))

    def merge(self, shard_dirs):
        total = sum(float(np.load(folder / "values.npy").sum()) for folder in shard_dirs)
        (self.output_dir / "total").write_text(str(total))
        join_files(shard_dirs, "wav.scp", self.output_dir / "wav.scp")
        return self.output_dir / "wav.scp"


class Folders(Speak):
    """Returns the folders of its shards: they are the result."""

    def merge(self, shard_dirs):
        return list(shard_dirs)


def speak(out, kind=Speak):
    with use_parallel({"env": "local", "n_workers": 1, "shards_per_worker": N_SHARDS}):
        return kind(Provider(), output_dir=out)(range(N_ITEMS))


def wavs(out):
    """Return two files of one subfolder of one shard, the same each time."""
    return sorted((out / "split.0" / "wav").glob("*.wav"))[:2]


def change_a_byte(out):
    path = wavs(out)[0]
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)


def change_a_byte_and_keep_the_time(out):
    path = wavs(out)[0]
    before = path.stat()
    change_a_byte(out)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap_two(out):
    first, second = wavs(out)
    os.rename(first, out / "aside")
    os.rename(second, first)
    os.rename(out / "aside", second)


def swap_two_with_their_times(out):
    first, second = wavs(out)
    times = [(path.stat().st_atime_ns, path.stat().st_mtime_ns) for path in (first, second)]
    swap_two(out)
    os.utime(first, ns=times[0])
    os.utime(second, ns=times[1])


def rename_one(out):
    path = wavs(out)[1]
    path.rename(path.with_name(path.stem + "x.wav"))


def rename_all_and_keep_their_order(out):
    for path in (out / "split.1" / "wav").rglob("*.wav"):
        path.rename(path.with_name("v" + path.name))


def move_one_to_another_folder(out):
    path = wavs(out)[1]
    path.rename(path.parent / "deep" / path.name)


def move_bytes_from_one_to_the_next(out):
    first, second = wavs(out)
    data, more = first.read_bytes(), second.read_bytes()
    first.write_bytes(data[:-10])
    second.write_bytes(data[-10:] + more)


def remove_one(out):
    wavs(out)[0].unlink()


def add_one(out):
    (out / "split.0" / "wav" / "extra.wav").write_bytes(b"RIFF")


def change_the_deep_one(out):
    path = next((out / "split.2" / "wav" / "deep").iterdir())
    path.write_bytes(path.read_bytes()[::-1])


def swap_files_of_two_shards(out):
    one, other = wavs(out)[0], sorted((out / "split.1" / "wav").glob("*.wav"))[0]
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def change_a_table_that_merge_reads(out):
    path = out / "split.1" / "values.npy"
    path.write_bytes(path.read_bytes()[:-8] + np.float64(77).tobytes())


CHANGES = [
    change_a_byte, change_a_byte_and_keep_the_time, swap_two, swap_two_with_their_times,
    rename_one, rename_all_and_keep_their_order, move_one_to_another_folder,
    move_bytes_from_one_to_the_next, remove_one, add_one, change_the_deep_one,
    swap_files_of_two_shards, change_a_table_that_merge_reads,
]  # fmt: skip


@pytest.fixture
def unmerged(tmp_path, monkeypatch):
    """A run whose shards are done, and whose merge failed."""

    def fail(self, shard_dirs):
        raise ValueError("not yet")

    with monkeypatch.context() as patch:
        patch.setattr(Speak, "merge", fail)
        with pytest.raises(ValueError, match="not yet"):
            speak(tmp_path)
    return tmp_path


@pytest.mark.parametrize("change", CHANGES)
def test_change_is_noticed_before_the_merge(unmerged, change):
    change(unmerged)
    with pytest.raises(IncompleteRunError, match=RERUN) as caught:
        speak(unmerged)
    assert "split." in str(caught.value)
    assert not (unmerged / "total").exists()
    assert not (unmerged / "_SUCCESS.json").exists()


@pytest.mark.parametrize("change", few(CHANGES, 4))
def test_change_is_noticed_after_the_merge(tmp_path, change):
    speak(tmp_path)
    change(tmp_path)
    with pytest.raises(IncompleteRunError, match=RERUN):
        speak(tmp_path)


@pytest.mark.parametrize("change", few(CHANGES, 4))
def test_change_of_a_folder_that_is_the_result_is_noticed(tmp_path, change):
    speak(tmp_path, Folders)
    change(tmp_path)
    with pytest.raises(IncompleteRunError):
        speak(tmp_path, Folders)


def test_line_of_a_folder_that_is_the_result_is_noticed(tmp_path):
    speak(tmp_path, Folders)
    path = tmp_path / "split.1" / "wav.scp"
    path.write_text(path.read_text().upper())
    with pytest.raises(IncompleteRunError, match=r"wav\.scp"):
        speak(tmp_path, Folders)


@pytest.mark.parametrize("name", ["extra.npy", "more"])
def test_file_or_folder_that_came_later_is_refused_before_the_merge(unmerged, name):
    path = unmerged / "split.0" / name
    if name == "more":
        path.mkdir()
        path = path / "x"
    path.write_bytes(b"x")
    with pytest.raises(IncompleteRunError, match=r"was not there when split\.0 was committed"):
        speak(unmerged)
    path.unlink()
    speak(unmerged)


def test_removed_shard_with_artifacts_is_computed_anew_after_the_merge(tmp_path):
    speak(tmp_path)
    shutil.rmtree(tmp_path / "split.1")
    speak(tmp_path)
    assert (tmp_path / "split.1" / "done").exists()


def test_way_out_that_the_error_names_works(tmp_path):
    speak(tmp_path)
    change_a_byte(tmp_path)
    with pytest.raises(IncompleteRunError, match="Remove the folder"):
        speak(tmp_path)
    shutil.rmtree(tmp_path / "split.0")
    speak(tmp_path)
    speak(tmp_path)


def test_copy_of_a_finished_run_is_complete_and_compared_once(tmp_path, monkeypatch):
    speak(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=shutil.copyfile)
    for path in (tmp_path / "one").iterdir():  # merged files are known by their times
        if path.is_file():
            shutil.copystat(path, tmp_path / "two" / path.name)
    read = []
    import espnet3.shards.merge as success_module

    real = success_module.check_contents
    monkeypatch.setattr(
        success_module, "check_contents", lambda shards: read.append(len(shards)) or real(shards)
    )
    speak(tmp_path / "two")
    assert read == [N_SHARDS]
    speak(tmp_path / "two")
    assert read == [N_SHARDS]


def test_merge_may_move_artifacts_away(tmp_path):
    class Mover(Speak):
        def merge(self, shard_dirs):
            (self.output_dir / "all").mkdir(exist_ok=True)
            for folder in shard_dirs:
                for path in list((folder / "wav").rglob("*.wav")):
                    path.rename(self.output_dir / "all" / path.name)
            return "moved"

    assert speak(tmp_path, Mover) == speak(tmp_path, Mover) == "moved"


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("other\n")])
def test_detached_run_whose_merged_file_changed_is_merged_anew(tmp_path, change):
    for _ in range(2):
        run = DetachedFolder(tmp_path / "out", n_items=6, n_shards=2)
        try:
            assert run.run() == 0
            run.assert_complete()
        finally:
            run.close()
        change(run.out / "text")


def test_detached_run_whose_shard_changed_is_not_merged(tmp_path):
    for wanted in (0, 1):
        run = DetachedFolder(tmp_path / "out", n_items=6, n_shards=2)
        try:
            assert run.run() == wanted
        finally:
            run.close()
        path = run.out / "split.1" / "text"
        path.write_text(path.read_text().upper())
        (run.out / "text").unlink(missing_ok=True)
    assert "split.1/text" in run.stop()["reason"]
    assert not (run.out / "_SUCCESS.json").exists()


def test_folder_of_the_version_before_merges_without_checksums_of_names(unmerged):
    for path in unmerged.glob("split.*/done"):
        values = json.loads(path.read_text())
        for entry in values["files"].values():
            entry.pop("names_crc32", None)
        path.write_text(json.dumps(values))
    assert speak(unmerged).name == "wav.scp"


def test_shards_of_lines_alone_may_be_removed_after_the_merge(tmp_path):
    class Lines(Speak):
        @staticmethod
        def open_writers(shard_dir):
            return {"scp": (shard_dir / "wav.scp").open("w")}

        @staticmethod
        def write_record(writers, result):
            writers["scp"].write(f"utt{result} {result}\n")

        @staticmethod
        def close_writers(writers):
            writers["scp"].close()

        def merge(self, shard_dirs):
            join_files(shard_dirs, "wav.scp", self.output_dir / "wav.scp")
            return self.output_dir / "wav.scp"

    speak(tmp_path, Lines)
    for folder in tmp_path.glob("split.*"):
        shutil.rmtree(folder)
    speak(tmp_path, Lines)
    assert not list(tmp_path.glob("split.*"))
