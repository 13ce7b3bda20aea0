import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espnet3.errors import IncompleteRunError
from espnet3.io.scp import ScpWriter, load_scp
from espnet3.shards.commit import commit
from espnet3.shards.layout import DONE
from espnet3.shards.merge import (
    check_complete,
    concat_files,
    outputs_of,
    read_coverage,
)
from tests.helpers.phrases import RERUN, says_to_rerun


def merge(run) -> str:
    check_complete(run.root, run.manifest)
    concat_files(run.shard_dirs(), "text", run.root / "text")
    return (run.root / "text").read_text()


def all_text(run) -> str:
    return "".join(run.text(shard) for shard in range(run.n_shards))


def test_shards_are_joined_in_dataset_order_whatever_order_they_were_committed_in(make_run):
    run = make_run(n_items=40, n_shards=12)
    for shard in reversed(range(run.n_shards)):
        run.commit(shard)
    assert merge(run) == all_text(run)
    assert concat_files(run.shard_dirs(), "text", run.root / "again") == 40


def test_run_without_items_is_complete_and_merges_to_an_empty_file(make_run):
    run = make_run(n_items=0)
    assert check_complete(run.root, run.manifest).is_complete
    assert merge(run) == ""


def test_missing_shards_are_named_with_their_items_and_what_to_do(run):
    bounds = run.manifest.bounds
    run.commit(0)
    run.commit(2)
    with pytest.raises(IncompleteRunError) as error:
        check_complete(run.root, run.manifest)
    n_missing = bounds[2] - bounds[1] + bounds[4] - bounds[3]
    message = str(error.value)
    assert f"{n_missing} of 10 items in {run.root} are not done" in message
    assert f"shard 1: items {bounds[1]} to {bounds[2] - 1}" in message
    assert f"shard 3: items {bounds[3]} to {bounds[4] - 1}" in message
    assert says_to_rerun(message, then=" to finish them")
    assert read_coverage(run.root, run.manifest).missing == [1, 3]


def test_many_missing_shards_are_counted(make_run):
    run = make_run(n_items=40, n_shards=20)
    with pytest.raises(IncompleteRunError, match=r"shard 4: items \d+ to \d+ and 15 more\)"):
        check_complete(run.root, run.manifest)


@pytest.mark.parametrize("damage", ["unlink", "truncate", "empty"])
def test_shard_with_a_damaged_done_is_missing(run, damage):
    run.commit_all()
    done = run.layout.shard(1) / DONE
    content = done.read_bytes()
    done.unlink()
    if damage != "unlink":
        done.write_bytes(content[:20] if damage == "truncate" else b"")
    assert read_coverage(run.root, run.manifest).missing == [1]
    with pytest.raises(IncompleteRunError, match="shard 1: "):
        check_complete(run.root, run.manifest)
    with pytest.raises(IncompleteRunError, match=f"{RERUN} to recompute it"):
        concat_files(run.shard_dirs(), "text", run.root / "text")
    assert not (run.root / "text").exists()


def test_shard_of_another_run_is_missing(run):
    run.commit_all()
    anew = run.start_anew()
    assert read_coverage(anew.root, anew.manifest).missing == [0, 1, 2, 3]


def test_shard_with_other_items_than_the_plan_gives_it_is_missing(run):
    run.commit_all()
    attempt = run.begin(1)
    shutil.rmtree(run.layout.shard(1))
    commit(attempt, run.layout, run.finish(attempt, 1, stop=run.items(1).stop + 1))
    assert read_coverage(run.root, run.manifest).missing == [1]


def test_copy_of_a_shard_in_the_place_of_another_is_missing(run):
    run.commit_all()
    shutil.rmtree(run.layout.shard(1))
    shutil.copytree(run.layout.shard(0), run.layout.shard(1))
    assert read_coverage(run.root, run.manifest).missing == [1]


def test_shard_beyond_the_plan_and_unfinished_attempts_are_not_looked_at(run):
    run.commit_all()
    shutil.copytree(run.layout.shard(0), run.root / "split.9")
    run.begin(0, "half")
    assert merge(run) == all_text(run)


@pytest.mark.parametrize("change", ["append", "truncate", "remove"])
def test_file_that_was_changed_since_its_commit_is_named_with_how_to_mend_it(run, change):
    run.commit_all()
    path = run.layout.shard(2) / "text"
    size = path.stat().st_size
    if change == "append":
        path.write_bytes(path.read_bytes() + b"x")
    elif change == "truncate":
        os.truncate(path, 3)
    else:
        path.unlink()
    for check in (
        lambda: check_complete(run.root, run.manifest),
        lambda: concat_files(run.shard_dirs(), "text", run.root / "text"),
    ):
        with pytest.raises(IncompleteRunError) as error:
            check()
        message = str(error.value)
        assert f"{path} was committed with {size} bytes and is now " in message
        assert f"Remove the folder {path.parent} and " in message
        assert says_to_rerun(message)
    assert not (run.root / "text").exists()
    shutil.rmtree(path.parent)
    assert run.commit(2)
    assert merge(run) == all_text(run)


def test_other_content_of_the_same_size_is_noticed_by_its_checksum(run):
    run.commit_all()
    path = run.layout.shard(2) / "text"
    path.write_bytes(path.read_bytes().replace(b"words", b"sword"))
    check_complete(run.root, run.manifest, contents=False)  # sizes only: cheap
    with pytest.raises(IncompleteRunError, match="other content"):
        check_complete(run.root, run.manifest)
    with pytest.raises(IncompleteRunError, match="bytes of other content"):
        concat_files(run.shard_dirs(), "text", run.root / "text")


def test_old_merged_file_stays_when_a_merge_fails(run):
    run.commit_all()
    assert merge(run) == all_text(run)
    (run.layout.shard(2) / "text").write_text("")
    with pytest.raises(IncompleteRunError):
        concat_files(run.shard_dirs(), "text", run.root / "text")
    assert (run.root / "text").read_text() == all_text(run)
    assert not [name for name in run.names() if name.startswith(".")]


def commit_with_folder(run):
    for shard in range(run.n_shards):
        attempt = run.begin(shard)
        (attempt / "wav").mkdir()
        for item in run.items(shard):
            (attempt / "wav" / f"{item}.wav").write_bytes(b"RIFF")
        (attempt / "wav" / "empty.wav").touch()
        assert commit(attempt, run.layout, run.finish(attempt, shard))


@pytest.mark.parametrize("name", ["0.wav", "empty.wav"])
def test_file_lost_from_a_subfolder_is_noticed_even_if_it_was_empty(run, name):
    commit_with_folder(run)
    check_complete(run.root, run.manifest)
    (run.layout.shard(0) / "wav" / name).unlink()
    with pytest.raises(IncompleteRunError) as error:
        check_complete(run.root, run.manifest)
    n_items = len(run.items(0))
    assert f"committed with {4 * n_items} bytes in {n_items + 1} files" in str(error.value)
    assert f"Remove the folder {run.layout.shard(0)} and" in str(error.value)


def test_lost_subfolder_is_missing(run):
    commit_with_folder(run)
    shutil.rmtree(run.layout.shard(0) / "wav")
    with pytest.raises(IncompleteRunError, match="is now missing"):
        check_complete(run.root, run.manifest)


@pytest.mark.parametrize("text", ["one\n", "", "a\nb\nc\nd\ne\nf\ng\n", "no newline"])
def test_part_without_one_line_per_result_is_refused_with_what_to_write(run, text):
    run.commit_all()
    shutil.rmtree(run.layout.shard(0))
    run.commit(0, text)
    with pytest.raises(IncompleteRunError) as error:
        concat_files(run.shard_dirs(), "text", run.root / "text")
    n_items = len(run.items(0))
    assert f"has {text.count(chr(10))} lines for {n_items} items with a result" in str(error.value)
    assert "Write one line per result; escape newlines in values" in str(error.value)
    assert "espnet3.io.scp does" in str(error.value)


def test_failed_items_need_no_line(run):
    for shard in range(run.n_shards):
        lines = run.text(shard).splitlines(keepends=True)
        assert run.commit(shard, "".join(lines[1:]), n_failed=1)
    assert concat_files(run.shard_dirs(), "text", run.root / "text") == 6


def test_shard_whose_items_all_failed_needs_no_file(run):
    run.commit_all()
    shutil.rmtree(run.layout.shard(0))
    attempt = run.begin(0)
    (attempt / "text").unlink()
    commit(attempt, run.layout, run.finish(attempt, 0, n_failed=len(run.items(0))))
    assert concat_files(run.shard_dirs(), "text", run.root / "text") == 10 - len(run.items(0))


def test_file_that_no_shard_has_is_refused(run):
    run.commit_all()
    with pytest.raises(IncompleteRunError, match="Write one line per result"):
        concat_files(run.shard_dirs(), "absent", run.root / "absent")


def test_attempt_is_no_shard_to_merge(run):
    attempt = run.begin(0)
    with pytest.raises(IncompleteRunError, match="it is not a committed shard"):
        concat_files([attempt], "text", run.root / "text")


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.text(max_size=8), min_size=10, max_size=10))
def test_value_with_newlines_forges_no_second_record(run, values):
    for shard in range(run.n_shards):
        shutil.rmtree(run.layout.shard(shard), ignore_errors=True)
        attempt = run.begin(shard)
        with ScpWriter(attempt / "hyp.scp") as writer:
            for item in run.items(shard):
                writer.write(f"utt{item}", values[item])
        assert commit(attempt, run.layout, run.finish(attempt, shard))
    check_complete(run.root, run.manifest)
    assert concat_files(run.shard_dirs(), "hyp.scp", run.root / "hyp.scp") == 10
    assert load_scp(run.root / "hyp.scp") == {f"utt{i}": value for i, value in enumerate(values)}


def test_output_that_is_listed_and_not_to_be_seen_yet_is_left_out(folder, monkeypatch):
    class Late:
        name = "_SUCCESS.json"

        def is_file(self, **_):
            return True

        def stat(self):
            raise FileNotFoundError(self.name)

    monkeypatch.setattr(os, "scandir", lambda path: [Late()])
    assert outputs_of(folder) == {}


def test_outputs_are_the_files_that_are_new_or_changed(folder):
    for name in ("old", "touched", ".hidden"):
        (folder / name).write_text("x")
    (folder / "sub").mkdir()
    before = outputs_of(folder)
    assert sorted(before) == ["old", "touched"]
    os.utime(folder / "touched", ns=(1, 1))
    (folder / "new").write_text("abc")
    (folder / ".new").write_text("abc")
    (folder / "link").symlink_to(folder / "old")
    found = outputs_of(folder, before)
    assert sorted(found) == ["new", "touched"]
    assert found["touched"] == (1, 1)
    assert found["new"] == (3, (folder / "new").stat().st_mtime_ns)
