"""SCP files are joined only if each id appears once."""

import pytest

from espnet3.errors import IncompleteRunError
from espnet3.io.scp import ScpWriter, read_scp
from espnet3.shards.commit import Done, finish_attempt
from espnet3.shards.merge_scp import concat_scp


def make_shard(root, shard, records):
    folder = root / f"split.{shard}"
    folder.mkdir()
    with ScpWriter(folder / "hyp.scp") as writer:
        for id, value in records:
            writer.write(id, value)
    finish_attempt(folder, Done("run", shard, 0, len(records)))
    return folder


def test_parts_are_joined_in_order(awkward):
    first = make_shard(awkward, 0, [("a", "one\ntwo"), ("b", "")])
    second = make_shard(awkward, 1, [("ab", "three")])
    assert concat_scp([first, second], "hyp.scp", awkward / "hyp.scp") == 3
    assert list(read_scp(awkward / "hyp.scp")) == [("a", "one\ntwo"), ("b", ""), ("ab", "three")]


def test_an_id_in_two_shards_is_told_with_both_places_and_nothing_is_written(tmp_path):
    shards = [
        make_shard(tmp_path, 0, [("a", "1"), ("utt", "2")]),
        make_shard(tmp_path, 1, [("b", "3"), ("c", ""), ("utt", "")]),
    ]
    with pytest.raises(
        IncompleteRunError, match=r"'utt' appears twice.*split.0.*:2 and .*:3\. Give"
    ):
        concat_scp(shards, "hyp.scp", tmp_path / "hyp.scp")
    assert not (tmp_path / "hyp.scp").exists()
