import numpy as np

from espnet3.components.metrics.error_rate import tally
from espnet3.systems.asr.metrics.wer import WER
from espnet3.systems.base.report_data import (
    by_seconds,
    by_units,
    read_groups,
    read_utterances,
)


def measured(tmp_path, refs, hyps, **settings):
    ids = [f"utt{i}" for i in range(len(refs))]
    data = {
        "utt_id": ids,
        "ref": refs,
        "hyp": hyps,
        "speaker": [f"s{i % 2}" for i in range(len(refs))],
    }
    WER(by=["speaker"], **settings)(data, "dev", tmp_path)
    return read_utterances(tmp_path / "dev/WER.jsonl")


def test_what_the_metric_wrote_is_read(tmp_path):
    found = measured(tmp_path, ["a b", "c", "d e f"], ["a b", "x y", "d"])
    assert found.ids == ["utt0", "utt1", "utt2"]
    assert tally(found.counts)["errors"] == 4
    groups = {group.label: group for group in read_groups(tmp_path / "dev/WER.by_speaker.tsv")}
    assert groups["s0"].rate == 40.0
    assert (groups["s1"].rate, groups["s1"].n_utterances, groups["s1"].n_units) == (200.0, 1, 1)


def test_worst_have_the_most_errors_then_the_fewest_units(tmp_path):
    refs = ["a b c", "a", "a b", "a b c d"]
    found = measured(tmp_path, refs, ["x y c", "x z", "a b", "x b c d"])
    assert found.worst(10) == [1, 0, 3]
    assert found.worst(1) == [1]


def test_breakdowns_keep_every_utterance(tmp_path):
    random = np.random.default_rng(0)
    lengths = random.integers(0, 60, 500)
    refs = [" ".join(["w"] * n) for n in lengths]
    found = measured(tmp_path, refs, ["w " * 20] * 500, n_bootstrap=0)
    for groups in (
        by_units(found.counts),
        by_seconds(found.counts, lengths * 0.4),
        by_seconds(found.counts, np.zeros(500)),
    ):
        assert sum(group.n_utterances for group in groups) == 500
        assert sum(group.n_units for group in groups) == lengths.sum()
        assert len(groups) <= 10


def test_few_lengths_stand_for_themselves(tmp_path):
    found = measured(tmp_path, ["a", "a b", "a b c"], ["a", "a", "a"])
    assert [(group.label, group.rate) for group in by_units(found.counts)] == [
        ("1", 0.0), ("2", 50.0), ("3", 200 / 3),
    ]  # fmt: skip


def test_files_of_another_kind_are_none(tmp_path):
    assert read_utterances(tmp_path / "no.jsonl") is None
    (tmp_path / "odd.jsonl").write_text('{"id": "a"}\n')
    assert read_utterances(tmp_path / "odd.jsonl") is None
