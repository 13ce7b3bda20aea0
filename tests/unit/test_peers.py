"""The page of peers: the libraries do the same work, and the page shows what was measured."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import peers
from benchmarks.figures import Figure, Skipped
from benchmarks.machine import describe_machine
from benchmarks.peer_process import OURS, PEERS

MAP = """
import json, sys
from benchmarks.peer_items import spell
from benchmarks.peer_process import OURS, PEERS, map_ours

if __name__ == "__main__":
    mapped = map_ours if sys.argv[1] == OURS else PEERS[sys.argv[1]][1]
    print(json.dumps(list(mapped(spell, range(7), 2))))
"""


@pytest.mark.parametrize(
    "name", [OURS, "multiprocessing.Pool", "joblib", "datatrove", "submitit, local"]
)
def test_each_library_returns_the_results_of_all_items_in_their_order(name, tmp_path):
    if name != OURS:
        pytest.importorskip(PEERS[name][0])
    script = tmp_path / "map.py"
    script.write_text(MAP)
    # In a process of its own: some of them leave theirs behind.
    command = [sys.executable, str(script), name]
    done = subprocess.run(
        command, cwd=peers.ROOT, env=_with_path(), capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout.splitlines()[-1]) == [str(idx) for idx in range(7)]


def _with_path():
    return {**os.environ, "PYTHONPATH": str(peers.ROOT)}


def answers(**by_peer):
    numbers = {work.name: {"value": 2.0} for work in peers.WORK[:-1]}
    ours = {**numbers, "killed": {"text": "finishes"}}
    return {
        work.name: {OURS: ours[work.name], **{p: v[work.name] for p, v in by_peer.items()}}
        for work in peers.WORK
    }


def test_the_table_of_the_page_is_replaced_and_nothing_else(tmp_path, monkeypatch):
    page = tmp_path / "performance.md"
    page.write_text("a\n<!-- table of peers -->\nold\n<!-- end of the table -->\nb\n")
    monkeypatch.setattr(peers, "PAGE", page)
    theirs = {work.name: {"value": 1.0} for work in peers.WORK[:-1]} | {"killed": {"text": "hangs"}}

    peers.write_table([OURS, "joblib"], answers(joblib=theirs), describe_machine(["peers"]))

    text = page.read_text()
    assert text.startswith("a\n<!-- table of peers -->\n| ")
    assert text.endswith("\n<!-- end of the table -->\nb\n")
    assert "old" not in text
    assert "| joblib | 1.00 us | 1.00 s | 1.00 s | 1.00 of the ideal | hangs |" in text


def test_what_did_not_work_is_told_in_words_and_where_we_lose_is_not_left_out():
    short = peers.WORK[1]
    found = {OURS: {"value": 2.0}, "quick": {"value": 1.0}, "broken": {"text": "did not end"}}

    assert list(peers._lines(short, found)) == [
        Figure(f"{short.what}; against quick", 2.0, "s", 1.0),
        Skipped(f"{short.what}: broken", "did not end"),
    ]


def test_the_plot_is_small_and_has_room_for_what_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "PLOT", tmp_path / "peers.png")
    theirs = {work.name: {"text": "did not end"} for work in peers.WORK}

    peers.write_plot([OURS, "joblib"], answers(joblib=theirs))

    assert 0 < (tmp_path / "peers.png").stat().st_size < 100_000


def test_a_library_that_does_not_end_is_given_up(monkeypatch):
    slow = peers.Work("killed", "", "", "", patience=0.1)  # less than Python takes to start

    assert peers._ask(slow, OURS) == {"text": "did not end in 0.1 s"}
