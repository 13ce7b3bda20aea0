import csv
import json

import numpy as np

from espnet3.components.metrics.error_rate import (
    tally_by,
    write_alignments,
    write_groups,
    write_utterances,
)

IDS = ["utt-1", "a/b:2", "發話"]
PAIRS = [(["a"], ["a"]), (["a", "b", "c"], ["x", "b", "y"]), ([], ["z"])]
COUNTS = np.array([[1, 0, 0, 0], [1, 2, 0, 0], [0, 0, 0, 1]])


def test_each_utterance_has_a_line_with_its_counts(awkward):
    path = awkward / "WER.jsonl"
    write_utterances(path, IDS, COUNTS)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["id"] for record in records] == IDS
    assert [record["rate"] for record in records] == [0.0, 100 * 2 / 3, None]
    assert records[1]["n_units"] == 3
    assert records[1]["substitutions"] == 2


def test_alignments_come_worst_first_and_only_of_utterances_with_errors(awkward):
    path = awkward / "WER.txt"
    write_alignments(path, IDS, COUNTS, PAIRS.__getitem__)
    text = path.read_text()
    assert text.startswith("# 2 of 3 utterances have errors; worst first\n")
    ids = [line for line in text.splitlines() if line.startswith("id: ")]
    assert ids == ["id: a/b:2", "id: 發話"]
    assert "Scores: (#C #S #D #I) 1 2 0 0\nREF:  a b c\nHYP:  x b y\nEval: S   S\n" in text


def test_groups_are_a_table_that_a_spreadsheet_reads(awkward):
    path = awkward / "WER.by_speaker.tsv"
    write_groups(path, "speaker", tally_by(COUNTS, ["s 1", "tab\tbed", "s 1"]))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert [row["speaker"] for row in rows] == ["s 1", "tab\\tbed"]
    assert rows[0]["rate"] == "100.00"
    assert rows[1]["n_units"] == "3"
