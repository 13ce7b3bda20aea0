import json
import logging
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from espnet3.errors import RecordError
from espnet3.io.atomic import JsonlWriter, to_jsonable
from espnet3.io.tables import read_jsonl

TEXT = st.text() | st.text(st.sampled_from('\n\r\x0b\x1c\x85\u2028\u2029\ud800\udc00\\"a'))
RECORDS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


def joined(value):
    """What JSON makes of a value: two lone surrogates that form a pair are one character."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if isinstance(value, list):
        return [joined(item) for item in value]
    if isinstance(value, dict):
        return {joined(key): joined(item) for key, item in value.items()}
    return value


def write(path: Path, *records, **options) -> Path:
    with JsonlWriter(path, **options) as writer:
        for record in records:
            writer.write(record)
    return path


@given(st.lists(RECORDS, max_size=5))
@example(["\u2028\x85\ud800", {"\ud800": "\n"}])
def test_every_record_survives_and_is_one_line_for_every_reader(tmp_path_factory, records):
    path = write(tmp_path_factory.mktemp("jsonl") / "a.jsonl", *records)
    assert list(read_jsonl(path)) == [joined(record) for record in records]
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) == text.count("\n") == len(records)


def test_letters_stay_readable_and_keys_keep_their_order(folder):
    path = write(folder / "a.jsonl", {"text": "日本 é", "id": 1})
    assert path.read_text(encoding="utf-8") == '{"text": "日本 é", "id": 1}\n'


def test_numpy_values_and_paths_are_converted(folder):
    record = {
        "f": np.float32(0.5),
        "i": np.int64(3),
        "b": np.bool_(True),
        "a": np.arange(4).reshape(2, 2),
        "l": np.longdouble(1.5),
        "p": Path("a b/c"),
        "r": range(2),
        "m": MappingProxyType({"k": np.int8(1)}),
        "o": np.array([Path("x"), None]),
    }
    plain = {
        "f": 0.5,
        "i": 3,
        "b": True,
        "a": [[0, 1], [2, 3]],
        "l": 1.5,
        "p": "a b/c",
        "r": [0, 1],
        "m": {"k": 1},
        "o": ["x", None],
    }
    assert list(read_jsonl(write(folder / "a.jsonl", record))) == [plain]
    assert to_jsonable(record) == plain
    assert json.loads(json.dumps(to_jsonable({"t": (np.int8(1), "x", None)}))) == {
        "t": [1, "x", None]
    }


@pytest.mark.parametrize(
    ("record", "place", "fix"),
    [
        ({"x": [b"abc"]}, "value['x'][0] is b'abc'", "value.decode()"),
        ({"x": {1}}, "value['x'] is {1}", "sorted(value)"),
        ({"x": object()}, "value['x'] is <object", "vars(value)"),
        ({"x": 1j}, "value['x'] is 1j", "convert it"),
        ({"x": np.array([1j])}, "value['x'][0] is 1j", "convert it"),
        ({"x": {(1, 2): 3}}, "value['x'] has the key (1, 2)", "str(key)"),
        ({"x": {np.int64(1): 3}}, "value['x'] has the key np.int64(1)", "str(key)"),
        ({"x": float("nan")}, "value['x'] is nan", "write None"),
        ([1, np.array([0.0, np.inf])], "value[1][1] is inf", "write None"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_key_and_fix_and_leaves_no_half_line(
    folder, record, place, fix
):
    path = folder / "a.jsonl"
    with JsonlWriter(path) as writer:
        writer.write(1)
        with pytest.raises(RecordError) as error:
            writer.write(record)
        writer.write(2)
    assert place in str(error.value)
    assert fix in str(error.value)
    assert str(error.value).startswith(f"{path}: ")
    assert list(read_jsonl(path)) == [1, 2]


def test_value_that_holds_itself_is_refused_with_the_fix(folder):
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(RecordError, match="flat dict"):
        write(folder / "a.jsonl", loop)


def test_nan_is_written_on_demand(folder):
    (record,) = read_jsonl(write(folder / "a.jsonl", {"x": np.float32("nan")}, allow_nan=True))
    assert record["x"] != record["x"]


def test_flush_shows_records_to_other_readers(folder):
    with JsonlWriter(folder / "a.jsonl") as writer:
        writer.write({"id": 1})
        writer.flush()
        assert list(read_jsonl(folder / "a.jsonl")) == [{"id": 1}]


def test_foreign_files_are_read(folder):
    path = folder / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n"x\xe2\x80\xa8y"\n{"b": 2}')
    assert list(read_jsonl(path)) == [{"a": 1}, "x\u2028y", {"b": 2}]


@pytest.mark.parametrize("cut", [b'{"id": "u', b'"na\xc3', b"\x00\x00", b"12", b"nul", b"-"])
def test_unfinished_last_line_is_an_error_or_skipped_with_a_warning(folder, cut, caplog):
    path = folder / "a.jsonl"
    path.write_bytes(b'{"id": 1}\n' + cut)
    with pytest.raises(RecordError) as error:
        list(read_jsonl(path))
    assert str(error.value).startswith(f"{path}:2: ")
    assert "read_jsonl(path, tolerate_truncated=True)" in str(error.value)
    with caplog.at_level(logging.WARNING):
        assert list(read_jsonl(path, tolerate_truncated=True)) == [{"id": 1}]
    assert f"{path}:2: skipped an unfinished last line" in caplog.text


def test_a_file_cut_anywhere_gives_its_whole_records_and_nothing_else(folder):
    records = [{"id": "é日", "n": 1}, [1, 2], "x", 17, True]
    data = write(folder / "a.jsonl", *records).read_bytes()
    for size in range(len(data) + 1):
        (folder / "cut.jsonl").write_bytes(data[:size])
        read = list(read_jsonl(folder / "cut.jsonl", tolerate_truncated=True))
        assert read == records[: len(read)]
        assert len(read) >= data[:size].count(b"\n")


@pytest.mark.parametrize("line", [b"{bad}\n", b'"na\xefve"\n', b'{"a": 1} {"b": 2}\n'])
@pytest.mark.parametrize("tolerate", [True, False])
def test_bad_line_in_the_middle_is_an_error_with_file_line_and_fix(folder, line, tolerate):
    path = folder / "a.jsonl"
    path.write_bytes(b"1\n" + line + b"2\n")
    with pytest.raises(RecordError) as error:
        list(read_jsonl(path, tolerate_truncated=tolerate))
    assert str(error.value).startswith(f"{path}:2: ")
    assert "one JSON value per line" in str(error.value)
