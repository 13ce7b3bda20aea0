import gc
import os

import numpy as np
import pytest

from espnet3.components.data.sources.shard_index import ColumnFile, ColumnFileError, write_columns


def columns():
    return {"a": np.arange(5, dtype=">i4"), "b": np.array([]), "c": np.array([0.5, np.nan])}


def test_columns_and_facts_come_back(awkward):
    file = awkward / "x.index"
    write_columns(file, {"size": 10**12, "names": ["é\n"]}, columns())
    read = ColumnFile(file)
    assert read.facts == {"size": 10**12, "names": ["é\n"]}
    assert read["a"].tolist() == [0, 1, 2, 3, 4]
    assert len(read["b"]) == 0
    assert np.array_equal(read["c"], [0.5, np.nan], equal_nan=True)
    assert not read["a"].flags.writeable


def test_a_long_header_is_read(tmp_path):
    write_columns(tmp_path / "x", {"text": "x" * 10_000}, columns())
    assert ColumnFile(tmp_path / "x")["a"][4] == 4


def test_no_handle_stays_open(tmp_path):
    write_columns(tmp_path / "x", {}, columns())
    gc.collect()  # of what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        ColumnFile(tmp_path / "x")["a"].sum()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("cut", [0, 5, 30, 100, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path, cut):
    file = tmp_path / "x"
    write_columns(file, {"a": 1}, columns())
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ColumnFileError, match="is damaged"):
        ColumnFile(file)


def test_a_file_with_objects_is_refused(tmp_path):
    file = tmp_path / "x"
    write_columns(file, {}, {"a": np.arange(8, dtype="<i8")})
    file.write_bytes(file.read_bytes().replace(b'"<i8"', b'"|O8"'))
    with pytest.raises(ColumnFileError, match="is of type"):
        ColumnFile(file)
