"""Equal error rates against a search over all thresholds, and the lists that are refused."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from espnet3.components.metrics.eer import EER, Trial, Trials, read_trials
from espnet3.errors import ConfigError, RecordError
from espnet3.io.scp import write_scp

SOURCES = {"embedding": Path("exp/test/embedding.scp")}


@pytest.fixture
def data(awkward, monkeypatch):
    """Embeddings of 8 speakers with 5 utterances each."""
    monkeypatch.chdir(awkward)
    folder = Path("exp/test/split.0/embedding")
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    ids, paths = [], []
    for speaker in range(8):
        centre = generator.normal(size=6)
        for number in range(5):
            ids.append(f"s{speaker}-{number}")
            np.save(folder / f"{ids[-1]}.npy", centre + 1.2 * generator.normal(size=6))
            paths.append(f"split.0/embedding/{ids[-1]}.npy")
    write_scp(SOURCES["embedding"], dict(zip(ids, paths, strict=True)))
    return {"utt_id": ids, "embedding": paths}


def write_trials(ids, form="{a} {b} {label}", n=400, words=("nontarget", "target")):
    generator = np.random.default_rng(1)
    pairs = [generator.choice(ids, size=2, replace=False) for _ in range(n)]
    lines = [
        form.format(a=a, b=b, label=words[a.split("-")[0] == b.split("-")[0]]) for a, b in pairs
    ]
    Path("data/test").mkdir(parents=True, exist_ok=True)
    Path("data/test/trials").write_text("\n".join(lines) + "\n")
    return pairs


def cosines(data, pairs):
    vectors = {
        id: np.load(Path("exp/test") / path)
        for id, path in zip(data["utt_id"], data["embedding"], strict=True)
    }
    return [
        float(vectors[a] @ vectors[b] / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b]))
        for a, b in pairs
    ]


def by_search(scores, labels, p_target=0.05):
    """Try each threshold; between the two around the crossing, follow the straight line."""
    points = []
    for threshold in [*sorted(set(scores)), max(scores) + 1]:
        targets = [s for s, is_target in zip(scores, labels, strict=True) if is_target]
        others = [s for s, is_target in zip(scores, labels, strict=True) if not is_target]
        miss = sum(s < threshold for s in targets) / len(targets)
        alarm = sum(s >= threshold for s in others) / len(others)
        points.append((miss, alarm))
    cost = min(p_target * miss + (1 - p_target) * alarm for miss, alarm in points)
    for (miss0, alarm0), (miss1, alarm1) in pairwise(points):
        if miss0 <= alarm0 and miss1 >= alarm1:
            share = (alarm0 - miss0) / ((alarm0 - miss0) + (miss1 - alarm1) or 1)
            return 100 * (miss0 + share * (miss1 - miss0)), cost / min(p_target, 1 - p_target)
    raise AssertionError("the rates never cross")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("{a} {b} {label}", ("nontarget", "target")),
        ("{a} {b} {label}", ("0", "1")),
        ("{label} {a} {b}", ("0", "1")),
        ("{a}*{b} {label}", ("0", "1")),
    ],
)
def test_rate_and_cost_are_those_of_a_search_over_thresholds(data, form, words):
    pairs = write_trials(data["utt_id"], form, words=words)
    numbers = EER()(data, "test", Path("exp"))
    labels = [a.split("-")[0] == b.split("-")[0] for a, b in pairs]
    rate, cost = by_search(cosines(data, pairs), labels)
    assert numbers["eer"] == pytest.approx(rate)
    assert numbers["min_dcf"] == pytest.approx(cost)
    assert (numbers["n_trials"], numbers["n_target"]) == (400, sum(labels))
    low, high = numbers["eer_interval"]
    assert low < rate < high
    low, high = numbers["min_dcf_interval"]
    assert low <= cost <= high
    first = Path("exp/test/EER.scores").read_text().splitlines()[0].split()
    assert first[:2] == list(pairs[0])
    assert float(first[2]) == pytest.approx(cosines(data, pairs)[0], abs=1e-6)


def test_equal_scores_are_decided_together():
    generator = np.random.default_rng(3)
    scores = generator.integers(0, 6, size=200) / 10
    labels = generator.random(200) < scores + 0.2
    trials = Trials(Path("t"), [Trial(f"e{n}", f"t{n}", bool(x)) for n, x in enumerate(labels)])
    numbers = EER(n_bootstrap=0)._numbers(scores, trials)
    rate, cost = by_search(scores.tolist(), labels.tolist())
    assert (numbers["eer"], numbers["min_dcf"]) == (pytest.approx(rate), pytest.approx(cost))
    assert numbers["eer_interval"] is None


def test_intervals_of_many_trials_are_those_of_all_their_scores(monkeypatch):
    generator = np.random.default_rng(0)
    labels = generator.random(3000) < 0.5
    scores = generator.normal(size=3000) + 2 * labels
    trials = Trials(Path("t"), [Trial("a", "b", bool(label)) for label in labels])
    exact = EER()._numbers(scores, trials)
    assert exact["eer"] == pytest.approx(15.87, abs=2)  # of two normal distributions
    # The standard error of the two rates at a threshold, and 1.96 of them.
    assert np.diff(exact["eer_interval"])[0] == pytest.approx(2.6, abs=0.8)
    monkeypatch.setattr("espnet3.components.metrics.eer._MOST_THRESHOLDS", 300)
    coarse = EER()._numbers(scores, trials)
    assert coarse["eer"] == exact["eer"]
    assert coarse["eer_interval"] == pytest.approx(exact["eer_interval"], abs=0.25)


def test_perfect_and_reversed_scores():
    trials = Trials(Path("t"), [Trial("a", "b", n >= 5) for n in range(10)])
    scores = np.arange(10.0)
    assert EER()._numbers(scores, trials)["eer"] == 0
    assert EER()._numbers(-scores, trials)["eer"] == 100


def test_an_interval_about_other_enrolments_is_wider(data):
    write_trials(data["utt_id"], n=1500)
    ends = [
        np.diff(EER(resample=way)(data, "test", Path("exp"))["eer_interval"])[0]
        for way in ("trial", "enrolment")
    ]
    assert ends[1] > ends[0]
    with pytest.raises(ConfigError, match=r"Did you mean 'trial'\? Write: resample: trial"):
        EER(resample="trials")


def check(data):
    EER().check(data, "test", Path("exp"), SOURCES)


def test_a_good_list_passes_the_check(data):
    write_trials(data["utt_id"])
    check(data)


def test_an_id_without_an_embedding_is_told_with_its_line(data):
    write_trials([*data["utt_id"][1:], data["utt_id"][0]])
    trials = Path("data/test/trials")
    lines = trials.read_text().splitlines()
    lines[2] = "s0-1 nobody nontarget"
    trials.write_text("\n".join(lines))
    with pytest.raises(
        RecordError,
        match=r"^data/test/trials:3: 'nobody' has no embedding in exp/test/embedding.scp.*1 id",
    ):
        check(data)


def test_a_list_with_one_kind_of_trials_is_refused(data):
    Path("data/test").mkdir(parents=True)
    Path("data/test/trials").write_text("s0-0 s0-1 target\n")
    with pytest.raises(ConfigError, match="has 1 trial, and none is a nontarget trial"):
        check(data)
    Path("data/test/trials").write_text("s0-0 s1-1 0\n")
    with pytest.raises(ConfigError, match="none is a target trial"):
        check(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s0-0 s0-1 target\ns0-0 s1-1 yes\n", ":2: 's0-0 s1-1 yes' is no trial"),
        ("s0-0 s0-1 target\n\ns0-0 s1-1 nontarget\n", ":2: '' is no trial"),
        ("s0-0 s0-1 target\n0 s0-0 s1-1\n", ":2: '0 s0-0 s1-1' is no trial"),
        ("1 s0-0 s0-1 x\n", ":1: '1 s0-0 s0-1 x' is no trial"),
        ("1 5 0\n0 6 1\n", ":1: the first and the third word of all lines can be labels"),
        ("", "is empty"),
    ],
)
def test_a_line_of_another_form_is_told(awkward, text, message):
    path = awkward / "trials"
    path.write_text(text)
    with pytest.raises(RecordError) as raised:
        read_trials(path)
    assert str(raised.value).startswith(f"{path}{message}" if message[0] == ":" else str(path))
    assert message in str(raised.value)


def test_missing_lists_and_embeddings_are_told(data):
    with pytest.raises(ConfigError, match=r"trials is 'data/test/trials'.*no such file.*test_set"):
        check(data)
    write_trials(data["utt_id"])
    Path("exp/test", data["embedding"][7]).unlink()
    with pytest.raises(
        RecordError, match=r"^exp/test/embedding.scp:8: embedding of s1-2 .*type: npy"
    ):
        check(data)


def test_embeddings_of_other_forms_are_refused(data):
    write_trials(data["utt_id"])
    path = Path("exp/test", data["embedding"][3])
    for array, message in [
        (np.ones(7), "has 7 numbers, but that of"),
        (np.zeros(6), "not all zero"),
        (np.ones((2, 6)), r"the shape \(2, 6\)"),
    ]:
        np.save(path, array)
        with pytest.raises(RecordError, match=message):
            EER()(data, "test", Path("exp"))
    np.save(path, np.ones((1, 6)))  # as a batch of one
    EER()(data, "test", Path("exp"))
