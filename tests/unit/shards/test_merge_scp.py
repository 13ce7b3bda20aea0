"""SCP files are joined only if each id appears once."""

import pytest

from espnet3.errors import IncompleteRunError
from espnet3.io.scp import read_scp
from espnet3.shards.merge import join_scp
from tests.helpers.planned_run import Run


def make_shards(root, ids):
    """Commit a record per id in two shards, and return their folders."""
    run = Run(root, n_items=len(ids), n_shards=2)
    for shard in range(2):
        run.commit(shard, "".join(f"{ids[item]} value {item}\n" for item in run.items(shard)))
    return [run.layout.shard(shard) for shard in range(2)]


def test_parts_are_joined_in_order(folder):
    ids = [f"utt{i}" for i in range(6)]
    assert join_scp(make_shards(folder, ids), "text", folder / "hyp.scp") == 6
    assert list(read_scp(folder / "hyp.scp")) == [(id, f"value {i}") for i, id in enumerate(ids)]


def test_an_id_in_two_shards_is_told_with_both_places_and_nothing_is_written(tmp_path):
    shards = make_shards(tmp_path, ["a", "twin", "c", "d", "e", "twin"])
    with pytest.raises(IncompleteRunError, match=r"'twin' appears twice.*text:2 and .*Give each"):
        join_scp(shards, "text", tmp_path / "hyp.scp")
    assert not (tmp_path / "hyp.scp").exists()
