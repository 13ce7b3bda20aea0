import hashlib
import json
import time
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.errors import ConfigError, RunFolderError
from espnet3.io import shared_files
from espnet3.shards import manifest as manifest_module
from espnet3.shards.layout import index_path, items_path
from espnet3.shards.manifest import (
    check_unique,
    collect_items,
    describe_problem,
    items_digest,
    load_items,
    open_items,
    store_items,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
RANGES = st.builds(
    range, st.integers(-50, 50), st.integers(-50, 50), st.integers(-7, 7).filter(bool)
)
JSON = st.one_of(
    st.integers(), st.text(), st.booleans(), st.none(), st.floats(allow_nan=False),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(), st.integers(), max_size=3),
)  # fmt: skip


@given(st.one_of(st.lists(INT64), st.lists(JSON), RANGES.map(list)))
def test_items_keep_values_and_order(values):
    items = collect_items(values)
    assert list(items) == values
    assert [type(item) for item in items] == [type(value) for value in values]


@given(RANGES)
def test_range_stays_a_range_with_one_spelling_however_it_is_given(values):
    forms = [values, list(values), tuple(values), iter(values), np.array(values, dtype=np.int64)]
    items = [collect_items(form) for form in forms]
    assert all(isinstance(form, range) for form in items)
    assert all(list(form) == list(values) for form in items)
    assert len({items_digest(form) for form in items}) == 1


@given(st.lists(INT64), st.lists(INT64))
def test_digests_are_equal_if_and_only_if_the_items_are(one, other):
    digests = [items_digest(collect_items(values)) for values in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)
    assert digests[0] == items_digest(collect_items(iter(one)))


@given(st.one_of(st.lists(INT64), st.lists(JSON), RANGES))
def test_storing_and_loading_gives_the_items_back(tmp_path_factory, values):
    items, root = collect_items(values), tmp_path_factory.getbasetemp()
    description = json.loads(json.dumps(store_items(root, items)))
    again = load_items(root, description)
    assert type(again) is type(items)
    assert again == items


@pytest.mark.parametrize("per_block", [1, 3, 1000])
@given(st.one_of(st.lists(st.integers(-(2**40), 2**40)), st.lists(JSON)), st.data())
def test_slice_of_stored_items_is_that_of_the_list(tmp_path_factory, per_block, values, data):
    items, root = collect_items(values), tmp_path_factory.getbasetemp()
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_module, "_PER_BLOCK", per_block)
        description = json.loads(json.dumps(store_items(root, items)))
    assert not describe_problem(description, "items")
    found = open_items(root, description, len(values))
    assert len(found) == len(values)
    assert list(found[start:stop]) == values[start:stop]


IDS = [f"utt-{number}-ä" for number in range(5000)]


def test_file_of_items_is_the_json_list_of_versions_before(folder):
    description = store_items(folder, IDS)
    whole = json.dumps(IDS, separators=(",", ":")).encode()
    assert items_path(folder, description["sha256"]).read_bytes() == whole
    assert description["sha256"] == hashlib.sha256(whole).hexdigest()
    assert items_digest(IDS) == f"5000 items, sha256:{description['sha256']}"


@pytest.mark.parametrize("items", [IDS, array("q", [*range(5000, 0, -1)])])
def test_slice_is_read_from_two_blocks_of_the_file_only(folder, items, monkeypatch):
    opened = open_items(folder, store_items(folder, items), len(items))
    read = []

    def read_file(file, begin, end):
        read.append(end - begin)
        return shared_files.read_file(file, begin, end)

    monkeypatch.setattr(manifest_module, "read_file", read_file)
    assert opened[1500:2500] == items[1500:2500]
    size = items_path(folder, store_items(folder, items)["sha256"]).stat().st_size
    assert read == [pytest.approx(size * 2048 / 5000, rel=0.02)]


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_items_whose_index_is_lost_are_loaded_as_a_whole(folder, damage):
    description = store_items(folder, IDS)
    damage(index_path(folder, description["sha256"]))
    assert open_items(folder, description, len(IDS)) == IDS


def test_items_of_a_version_without_index_are_loaded_as_a_whole(folder):
    description = store_items(folder, IDS)
    index_path(folder, description["sha256"]).unlink()
    del description["index"]
    assert open_items(folder, description, len(IDS)) == IDS


def test_block_that_was_changed_is_refused_and_the_others_are_not(folder):
    description = store_items(folder, IDS)
    file = items_path(folder, description["sha256"])
    file.write_bytes(file.read_bytes().replace(b"utt-1500-", b"utt-15OO-"))
    opened = open_items(folder, description, len(IDS))
    assert opened[4000:4010] == IDS[4000:4010]
    with pytest.raises(RunFolderError, match="Start over with resume=False, or restore the file"):
        opened[1400:1600]


def test_index_of_another_number_of_items_is_refused(folder):
    description = store_items(folder, IDS)
    with pytest.raises(RunFolderError, match="is not the item list of its manifest"):
        open_items(folder, description, 3 * len(IDS))
    with pytest.raises(RunFolderError, match="is not the item list of its manifest"):
        open_items(folder, description, len(IDS) + 1)[4999:5001]


@pytest.mark.parametrize(
    "index", [7, {}, {"sha256": "a" * 64}, {"sha256": "a" * 64, "items_per_block": 0},
              {"sha256": "../x", "items_per_block": 5}]
)  # fmt: skip
def test_forged_index_is_refused(index):
    description = {"kind": "json", "sha256": "a" * 64, "index": index}
    assert "items.index" in describe_problem(description, "items")


def test_few_items_need_no_index(folder):
    store_items(folder, ["a", "b"])
    assert [path.suffix for path in folder.iterdir()] == [".items"]


def test_shuffled_integers_are_packed_in_eight_bytes_each(folder):
    items = collect_items([5, 3, 4])
    assert items == array("q", [5, 3, 4])
    digest = store_items(folder, items)["sha256"]
    assert items_path(folder, digest).stat().st_size == 24


def test_range_needs_no_file_beside_the_manifest(folder):
    store_items(folder, collect_items(list(range(10**6))))
    assert not list(folder.iterdir())


def test_equal_hashes_of_other_items_do_not_count_as_repeated(monkeypatch):
    monkeypatch.setattr(manifest_module, "_FEW", 0)
    assert hash(-1) == hash(-2)
    check_unique(collect_items([-1, -2, 5]))
    with pytest.raises(ConfigError, match="holds -2 twice, at positions 1 and 3"):
        check_unique(collect_items([-1, -2, 5, -2]))


def test_numpy_integers_become_plain_ones():
    items = collect_items([np.int32(3), np.int64(1)])
    assert [type(item) for item in items] == [int, int]


@pytest.mark.parametrize("values", [[True, False], [0, True, 2], [0, 1, True]])
def test_bools_are_not_taken_for_integers(values):
    items = collect_items(values)
    assert [type(item) for item in items] == [type(value) for value in values]


def test_integers_beyond_64_bits_stay_a_list():
    assert collect_items([2**63, 1]) == [2**63, 1]


@pytest.mark.parametrize("nothing", [[], (), range(0), range(5, 5), range(3, 0), iter([])])
def test_no_items_are_the_same_however_they_are_given(nothing):
    items = collect_items(nothing)
    assert len(items) == 0
    assert items_digest(items) == items_digest(range(0))
    check_unique(items)


def test_ten_million_shuffled_items_are_checked_and_packed_in_seconds():
    values = np.random.default_rng(0).permutation(1_000_000).tolist()  # a tenth, for the test
    begin = time.process_time()
    items = collect_items(values)
    check_unique(items)
    items_digest(items)
    assert time.process_time() - begin < 2


@given(st.lists(st.one_of(INT64, st.text(max_size=3)), min_size=1), st.data())
def test_repeated_item_is_named_with_both_positions(values, data):
    values = list(dict.fromkeys(values))
    check_unique(collect_items(values))
    first = data.draw(st.integers(0, len(values) - 1))
    again = data.draw(st.integers(first + 1, len(values)))
    repeated = [*values[:again], values[first], *values[again:]]
    with pytest.raises(ConfigError) as error:
        check_unique(collect_items(repeated))
    assert f"{values[first]!r} twice, at positions {first} and {again}" in str(error.value)
    assert "runner(list(dict.fromkeys(indices)))" in str(error.value)


@pytest.mark.parametrize("values", [["1", 1], [True, 1], [None, "null"], [[1, 2], "[1, 2]"]])
def test_items_that_only_look_alike_are_distinct(values):
    check_unique(collect_items(values))


def test_items_that_json_cannot_hold_are_refused_with_what_to_pass_instead(folder):
    items = collect_items([object()])
    for function in (items_digest, lambda items: store_items(folder, items)):
        with pytest.raises(ConfigError, match="Pass integers or strings"):
            function(items)
    assert not list(folder.iterdir())


def test_missing_item_list_says_how_to_go_on(folder):
    description = store_items(folder, collect_items(["a", "b"]))
    file = items_path(folder, description["sha256"])
    file.unlink()
    with pytest.raises(RunFolderError, match="Start over with resume=False") as error:
        load_items(folder, description)
    assert str(file) in str(error.value)


@pytest.mark.parametrize("values", [["a", "b"], [9, 3, 5]])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b" ", lambda _: b""]
)
def test_damaged_item_list_is_refused(folder, values, damage):
    description = store_items(folder, collect_items(values))
    file = items_path(folder, description["sha256"])
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RunFolderError, match="Start over with resume=False, or restore the file"):
        load_items(folder, description)
