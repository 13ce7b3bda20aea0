import time
from dataclasses import replace

import pytest

from espnet3.parallel.faults import MEMORY_SECONDS, avoided_nodes, judge_nodes
from espnet3.shards.commit import Done
from espnet3.shards.records import CrashNote, read_deaths, write_death

NOW = 10_000.0


def died(shard, host="a", time=NOW - 100, kind="died"):
    return CrashNote(shard, host, f"reason {shard}", kind=kind, time=time)


def committed(host, finished, shard=9):
    return Done("r", shard, 0, 1, host=host, finished=finished)


THREE = [died(0), died(1, time=NOW - 90), died(2, time=NOW - 80, kind="machine")]
OTHERS = [committed("b", NOW - 50)]


def test_a_node_where_three_shards_died_while_others_got_on_is_avoided():
    bad = judge_nodes(THREE, OTHERS, NOW)
    assert list(bad) == ["a"]
    assert "3 shards (0, 1, 2)" in bad["a"]
    assert "reason 2" in bad["a"]


def test_one_shard_that_kills_again_and_again_is_no_fault_of_the_node():
    assert judge_nodes([died(0), died(0), died(0), died(1)], OTHERS, NOW) == {}


def test_where_nobody_gets_anything_done_it_is_not_the_node():
    assert judge_nodes(THREE, [], NOW) == {}
    assert judge_nodes(THREE, [committed("b", NOW - 200)], NOW) == {}


def test_a_node_that_finished_a_shard_since_is_well():
    assert judge_nodes(THREE, [*OTHERS, committed("a", NOW - 70)], NOW) == {}
    assert judge_nodes(THREE, [*OTHERS, committed("a", NOW - 85)], NOW) == {}  # one is left


def test_a_walltime_says_nothing_about_a_node():
    notes = [replace(note, kind="walltime") for note in THREE]
    assert judge_nodes(notes, OTHERS, NOW) == {}


def test_what_happened_long_ago_is_forgotten():
    later = NOW + MEMORY_SECONDS
    assert judge_nodes(THREE, [committed("b", later)], later) == {}


def avoided(planned, host=None):
    notes = [note for note in read_deaths(planned.paths) if host in (None, note.host)]
    return avoided_nodes(planned.root, planned.manifest, notes, time.time())


def test_the_folder_tells(planned):
    for shard in (1, 2, 3):
        write_death(planned.paths, CrashNote(shard, "a", "it died"))
    assert avoided(planned) == {}
    planned.commit(0, host="b")
    assert list(avoided(planned)) == ["a"]
    assert list(avoided(planned, "a")) == ["a"]
    assert avoided(planned, "b") == {}


def test_no_shard_is_looked_at_for_other_nodes_or_for_what_is_long_ago(planned, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("each worker would read each shard once a minute")

    monkeypatch.setattr("espnet3.parallel.faults.read_coverage", refuse)
    for shard in (1, 2, 3):
        write_death(planned.paths, CrashNote(shard, "a", "it died"))
        old = time.time() - MEMORY_SECONDS - 1
        write_death(planned.paths, CrashNote(shard, "b", "it died", time=old))
    assert avoided(planned, "b") == {}
    assert avoided(planned, "c") == {}
    with pytest.raises(AssertionError, match="once a minute"):
        avoided(planned, "a")
