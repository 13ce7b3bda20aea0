"""A finished run with `results: parquet` could not be merged if values were of several types."""

import json

import pytest

from espnet3.io.tables import jsonl_to_parquet

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def convert(tmp_path):
    """Return a function that takes records through both files."""

    def there_and_back(records):
        source, target = tmp_path / "results.jsonl", tmp_path / "results.parquet"
        source.write_text("".join(json.dumps(record) + "\n" for record in records))
        jsonl_to_parquet(source, target)
        return parquet.read_table(target).to_pylist()

    return there_and_back


def test_an_nbest_list_with_scores_is_json_text(convert):
    rows = convert([{"utt_id": "a", "hyp": [["one", -1.5], ["two", -2.5]]}, {"utt_id": "b"}])
    assert json.loads(rows[0]["hyp"]) == [["one", -1.5], ["two", -2.5]]
    assert rows[1] == {"utt_id": "b", "hyp": None}


@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 1.5), ([], ["a"]), (None, "a"), (["a"], []), (1, None)],
)
def test_a_value_of_another_type_after_a_million_bytes_fits_in(convert, first, last):
    records = [{"utt_id": f"utt{i}", "hyp": "a b c d", "value": first} for i in range(30_000)]
    rows = convert([*records, {"utt_id": "last", "hyp": "", "value": last}])
    assert rows[0]["value"] == first
    assert rows[-1]["value"] == last


def test_texts_and_numbers_in_one_column_are_json_text(convert):
    rows = convert([{"score": 1}, {"score": "none"}, {"score": True}])
    assert [json.loads(row["score"]) for row in rows] == [1, "none", True]


def test_a_text_like_a_date_stays_a_text(convert):
    assert convert([{"hyp": "2024-01-02"}]) == [{"hyp": "2024-01-02"}]


def test_long_lines_large_numbers_and_lone_surrogates_are_kept(convert):
    rows = convert([{"hyp": "x" * 3_000_000, "n": 2**70, "odd": "a\ud800"}])
    assert len(rows[0]["hyp"]) == 3_000_000
    assert json.loads(rows[0]["n"]) == 2**70
    assert rows[0]["odd"] == "a\\ud800"


def test_no_record_is_an_empty_table(convert):
    assert convert([]) == []
