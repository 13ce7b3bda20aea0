import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.shards.merge import (
    check_complete,
    concat_files,
    decode_result,
    encode_result,
    has_outputs,
    outputs_of,
    read_success,
    write_success,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


def write(run, result, *, outputs=None, **values):
    write_success(
        run.layout,
        run.manifest,
        check_complete(run.root, run.manifest).committed.values(),
        output_dir=run.root,
        outputs=outputs or {},
        result=result,
        **values,
    )
    return read_success(run.layout, run.manifest.run_id)


@given(PLAIN)
def test_plain_results_come_back_equal(result):
    encoded = encode_result(result, Path("/out"))
    assert decode_result(json.loads(json.dumps(encoded)), Path("/out")) == result


def test_paths_inside_the_folder_move_with_it():
    encoded = encode_result({"hyp": Path("/old/hyp.scp"), "all": [Path("/old")]}, Path("/old"))
    moved = decode_result(json.loads(json.dumps(encoded)), Path("/new"))
    assert moved == {"hyp": Path("/new/hyp.scp"), "all": [Path("/new")]}


def test_paths_elsewhere_stay_where_they_are():
    encoded = encode_result([Path("/data/x")], Path("/out"))
    assert decode_result(encoded, Path("/new")) == [Path("/data/x")]


@pytest.mark.parametrize(
    "result",
    [(1, 2), {1: "a"}, {"a": {1, 2}}, b"x", math.inf, -math.inf, math.nan, [math.inf], object(),
     {"__path__": "x"}, Path("relative")],
)  # fmt: skip
def test_result_that_would_not_come_back_equal_is_left_out(run, result):
    values = write(run.commit_all(), result)
    assert "result" not in values
    assert values["n_items"] == 10


def test_result_that_holds_itself_is_left_out():
    result: list[object] = []
    result.append(result)
    assert encode_result(result, Path("/out")) is None


def test_none_is_a_result(run):
    assert write(run.commit_all(), None)["result"] == [None]


def test_result_that_is_not_to_be_kept_is_left_out(run):
    assert "result" not in write(run.commit_all(), 1, keep_result=False)


@pytest.mark.parametrize("name", ["café", "caf\udce9", "a\nb"])
def test_odd_names_survive(run, name):
    values = write(run.commit_all(), run.root / name)
    assert decode_result(values["result"], run.root) == run.root / name


def test_counts_times_and_hosts_add_up(make_run):
    run = make_run(versions={"espnet3": "0.1"})
    for shard in range(run.n_shards):
        n = len(run.items(shard))
        text = "".join(run.text(shard).splitlines(keepends=True)[1:])
        run.commit(
            shard, text, n_failed=1, seconds=1.5, load_seconds=n / 4, host=f"node{shard % 2}"
        )
    values = write(run, "done")
    assert values["n_items"] == 10
    assert values["n_failed"] == values["n_shards"] == 4
    assert values["worker_seconds"] == 6.0
    assert values["load_seconds"] == 2.5
    assert values["hosts"] == ["node0", "node1"]
    assert values["versions"] == {"espnet3": "0.1"}
    assert values["seconds"] >= 0


def test_success_of_another_run_is_none(run):
    write(run.commit_all(), 1)
    assert read_success(run.layout, "another") is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", "\xff"])
def test_damaged_or_foreign_success_is_none(run, content):
    run.layout.success.write_text(content, encoding="latin-1")
    assert read_success(run.layout, run.manifest.run_id) is None


def test_no_success_is_none(run):
    assert read_success(run.layout, run.manifest.run_id) is None


def merged(run):
    before = outputs_of(run.root)
    concat_files(run.commit_all().shard_dirs(), "text", run.root / "text")
    return write(run, 10, outputs=outputs_of(run.root, before))


def test_outputs_that_are_as_they_were_are_recognised(run):
    values = merged(run)
    assert list(values["outputs"]) == ["text"]
    assert has_outputs(values, run.root)


def test_removed_changed_or_touched_output_is_noticed(run):
    values = merged(run)
    text = run.root / "text"
    stat = text.stat()
    os.utime(text, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert not has_outputs(values, run.root)
    os.utime(text, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert has_outputs(values, run.root)
    text.write_bytes(text.read_bytes() + b"x")
    os.utime(text, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not has_outputs(values, run.root)
    text.unlink()
    assert not has_outputs(values, run.root)
