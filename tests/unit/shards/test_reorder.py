import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet3.errors import IncompleteRunError
from espnet3.shards import reorder
from espnet3.shards.reorder import restore_lines
from tests.helpers.phrases import says_to_rerun

# What may stand in a line: anything but its end, also other line ends of Python's splitlines.
LINES = st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"\r\x85"))


def write_parts(folder: Path, lines: list[bytes], n_parts: int, seed: int):
    ranks = list(range(len(lines)))
    random.Random(seed).shuffle(ranks)
    parts = []
    for number in range(n_parts):
        chosen = ranks[number::n_parts]
        path = folder / f"part {number}"
        path.write_bytes(b"".join(lines[rank] + b"\n" for rank in chosen))
        parts.append((path, chosen))
    return parts


@settings(max_examples=40)
@given(
    lines=st.lists(LINES, max_size=60),
    n_parts=st.integers(1, 5),
    n_buckets=st.integers(0, 80),
    seed=st.integers(),
)
def test_lines_come_out_in_the_order_of_their_ranks(
    tmp_path_factory, lines, n_parts, n_buckets, seed
):
    folder = tmp_path_factory.mktemp("parts")
    parts = write_parts(folder, lines, n_parts, seed)
    n_bytes = n_buckets * reorder._BUCKET_BYTES
    restore_lines(parts, folder / "out", n_lines=len(lines), n_bytes=n_bytes)
    assert (folder / "out").read_bytes() == b"".join(line + b"\n" for line in lines)
    assert not list(folder.glob(".*"))


@settings(max_examples=10)
@given(data=st.data())
def test_restoring_equals_sorting(tmp_path_factory, data):
    lines = [f"{key:06d} text" for key in data.draw(st.sets(st.integers(0, 10**6), max_size=300))]
    rank = {line: number for number, line in enumerate(sorted(lines))}
    folder = tmp_path_factory.mktemp("parts")
    (folder / "in").write_text("".join(f"{line}\n" for line in lines))
    parts = [(folder / "in", [rank[line] for line in lines])]
    restore_lines(parts, folder / "out", n_lines=len(lines), n_bytes=7 * reorder._BUCKET_BYTES)
    assert (folder / "out").read_text().splitlines() == sorted(lines)


def test_real_sizes_choose_the_number_of_buckets(folder, monkeypatch):
    monkeypatch.setattr(reorder, "_BUCKET_BYTES", 1000)
    lines = [b"x" * 99 for _ in range(200)]
    parts = write_parts(folder, lines, 3, seed=0)
    made = []
    real = reorder._Bucket
    monkeypatch.setattr(reorder, "_Bucket", lambda path: made.append(path) or real(path))
    restore_lines(parts, folder / "out", n_lines=200, n_bytes=20_000)
    assert len(made) == 20
    assert len((folder / "out").read_bytes()) == 20_000


@pytest.mark.parametrize(("block", "pending", "at_once"), [(1, 0, 1), (3, 50, 2), (7, 10**6, 3)])
def test_lines_come_out_whole_however_they_are_read_and_written(
    folder, monkeypatch, block, pending, at_once
):
    sizes = {"_BLOCK": block, "_PENDING_BYTES": pending, "_LINES_AT_ONCE": at_once}
    for name, value in sizes.items():
        monkeypatch.setattr(reorder, name, value, raising=False)
    lines = [b"x" * (number % 9) + b"\r" * (number % 2) for number in range(100)]
    parts = write_parts(folder, lines, 7, seed=1)
    n_bytes = 5 * reorder._BUCKET_BYTES
    restore_lines(parts, folder / "out", n_lines=100, n_bytes=n_bytes)
    assert (folder / "out").read_bytes() == b"".join(line + b"\n" for line in lines)


def test_last_line_may_lack_its_newline(folder):
    (folder / "in").write_bytes(b"b\na")
    restore_lines([(folder / "in", [1, 0])], folder / "out", n_lines=2, n_bytes=3)
    assert (folder / "out").read_bytes() == b"a\nb\n"


def test_part_with_another_number_of_lines_is_named_with_how_to_mend_it(folder):
    (folder / "in").write_bytes(b"a\nb\nc\n")
    with pytest.raises(IncompleteRunError) as error:
        restore_lines([(folder / "in", [0, 1])], folder / "out", n_lines=2, n_bytes=6)
    assert f"{folder / 'in'} has 3 lines, but 2 were expected" in str(error.value)
    assert f"remove the folder {folder} and " in str(error.value)
    assert says_to_rerun(str(error.value))
    assert not (folder / "out").exists()


@pytest.mark.parametrize("ranks", [[0, 2], [-1, 0]])
def test_rank_out_of_range_is_refused_with_the_ranks_to_give(folder, ranks):
    (folder / "in").write_bytes(b"a\nb\n")
    with pytest.raises(IncompleteRunError, match="Give the ranks 0 to 1, each once"):
        restore_lines([(folder / "in", ranks)], folder / "out", n_lines=2, n_bytes=4)


@pytest.mark.parametrize("n_buckets", [1, 4])
def test_missing_and_repeated_lines_are_counted_and_nothing_is_written(folder, n_buckets):
    (folder / "out").write_text("old")
    (folder / "in").write_bytes(b"a\nb\nc\n")
    n_bytes = n_buckets * reorder._BUCKET_BYTES
    with pytest.raises(IncompleteRunError) as error:
        restore_lines([(folder / "in", [0, 0, 3])], folder / "out", n_lines=4, n_bytes=n_bytes)
    assert "twice for [0] (1 in all)" in str(error.value)
    assert "each rank once over all parts" in str(error.value)
    assert (folder / "out").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == ["in", "out"]


def test_lines_that_no_part_has_are_missing(folder):
    (folder / "in").write_bytes(b"a\n")
    with pytest.raises(IncompleteRunError, match=r"missing for ranks \[1, 2, 3, 4, 5\] \(9 in all"):
        restore_lines([(folder / "in", [0])], folder / "out", n_lines=10, n_bytes=10)
