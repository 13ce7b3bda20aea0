from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.shards.layout import (
    RunLayout,
    discarded_path,
    index_path,
    is_protocol_name,
    items_path,
    manifest_path,
    shard_of,
    shard_of_attempt,
)


@pytest.mark.parametrize(
    ("n_shards", "shard", "name"),
    [(0, 0, "split.0"), (1, 0, "split.0"), (10, 9, "split.9"), (11, 7, "split.07"),
     (100, 7, "split.07"), (101, 7, "split.007"), (1001, 1000, "split.1000")],
)  # fmt: skip
def test_shard_numbers_are_padded_to_a_common_width(n_shards, shard, name):
    assert RunLayout("/run", n_shards).shard(shard) == Path("/run") / name


@pytest.mark.parametrize(
    "name",
    [
        "split.7",
        "split.0007",
        "split.",
        "split.x",
        "split.\u0660\u0660\u0667",
        "split.+07",
        "split",
        "07",
    ],
)
def test_a_folder_of_another_name_is_no_shard(name):
    layout = RunLayout("/run", 500)
    assert layout.shard_named(name) is None
    assert layout.shard_named("split.007") == 7


@given(st.integers(1, 1200))
def test_plain_sorted_is_shard_order(n_shards):
    layout = RunLayout("/run", n_shards)
    folders = [layout.shard(shard) for shard in range(n_shards)]
    assert sorted(folders) == folders
    assert sorted(map(str, folders)) == list(map(str, folders))


@given(n_shards=st.integers(1, 10**6), data=st.data())
def test_names_tell_the_shard_they_were_made_for(n_shards, data):
    shard = data.draw(st.integers(0, n_shards - 1))
    layout = RunLayout("/run", n_shards)
    name, attempt = layout.shard_name(shard), layout.new_attempt(shard)
    assert shard_of(name) == shard
    assert shard_of_attempt(attempt.name) == shard
    assert shard_of_attempt(name) is None
    assert shard_of(attempt.name) is None


def test_attempts_at_one_shard_never_share_a_name():
    layout = RunLayout("/run", 3)
    assert len({layout.new_attempt(1) for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    "name", ["split", "split.", "split.x", "split.1.bak", "split.-1", " split.1", "split.1\n", "1"]
)
def test_other_names_are_no_shards(name):
    assert shard_of(name) is None
    assert shard_of_attempt(name) is None
    assert not is_protocol_name(name)


def test_discarded_attempt_is_still_an_attempt_and_gets_no_longer_name_the_second_time():
    attempt = RunLayout("/run", 12).new_attempt(3)
    dead = discarded_path(attempt)
    assert dead != attempt
    assert dead.parent == attempt.parent
    assert shard_of_attempt(dead.name) == 3
    assert discarded_path(dead) == dead


def test_every_path_of_a_run_is_known_as_the_protocols(folder):
    layout = RunLayout(folder, 12)
    paths = [
        layout.failed, layout.logs, layout.leases, layout.success, layout.shard(3),
        layout.new_attempt(3), discarded_path(layout.new_attempt(3)), manifest_path(folder),
        items_path(folder, "0123456789abcdef" * 4), index_path(folder, "0123456789abcdef" * 4),
    ]  # fmt: skip
    for path in paths:
        assert path.parent == folder
        assert is_protocol_name(path.name), path.name
    assert layout.claim("split.03").parent == layout.leases


@pytest.mark.parametrize(
    "name", ["text", "hyp.scp", "manifest.items", "manifest.jsonl", "my.items", "success.json", ""]
)
def test_names_of_the_user_are_not_the_protocols(name):
    assert not is_protocol_name(name)


def test_item_lists_with_other_content_have_other_names(folder):
    assert items_path(folder, "a" * 64) != items_path(folder, "b" * 64)
