import json
import time
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.errors import ConfigError, RunFolderError
from espnet3.shards.items import (
    check_unique,
    collect_items,
    items_digest,
    pack_items,
    unpack_items,
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
    assert len({json.dumps(pack_items(form)[0]["range"]) for form in items if values}) <= 1


@given(st.lists(INT64), st.lists(INT64))
def test_digests_are_equal_if_and_only_if_the_items_are(one, other):
    digests = [items_digest(collect_items(values)) for values in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)
    assert digests[0] == items_digest(collect_items(iter(one)))


@given(st.one_of(st.lists(INT64), st.lists(JSON), RANGES))
def test_packing_and_unpacking_gives_the_items_back(tmp_path_factory, values):
    items = collect_items(values)
    description, data = pack_items(items)
    file = tmp_path_factory.getbasetemp() / "items"
    if data is not None:
        file.write_bytes(data)
    again = unpack_items(json.loads(json.dumps(description)), file)
    assert type(again) is type(items)
    assert again == items


def test_shuffled_integers_are_packed_in_eight_bytes_each():
    items = collect_items([5, 3, 4])
    assert items == array("q", [5, 3, 4])
    assert len(pack_items(items)[1]) == 24


def test_range_needs_no_file_beside_the_manifest():
    assert pack_items(collect_items(list(range(10**6))))[1] is None


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
    begin = time.perf_counter()
    items = collect_items(values)
    check_unique(items)
    items_digest(items)
    assert time.perf_counter() - begin < 2


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


def test_items_that_json_cannot_hold_are_refused_with_what_to_pass_instead():
    items = collect_items([object()])
    for function in (items_digest, pack_items):
        with pytest.raises(ConfigError, match="Pass integers or strings"):
            function(items)


def test_missing_item_list_says_how_to_go_on(folder):
    description, _ = pack_items(collect_items(["a", "b"]))
    with pytest.raises(RunFolderError, match="Start over with resume=False") as error:
        unpack_items(description, folder / "items")
    assert str(folder / "items") in str(error.value)


@pytest.mark.parametrize("values", [["a", "b"], [9, 3, 5]])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b" ", lambda _: b""]
)
def test_damaged_item_list_is_refused(folder, values, damage):
    description, data = pack_items(collect_items(values))
    (folder / "items").write_bytes(damage(data))
    with pytest.raises(RunFolderError, match="Start over with resume=False, or restore the file"):
        unpack_items(description, folder / "items")
