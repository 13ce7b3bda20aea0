"""BLEU against sacreBLEU itself."""

import json

import numpy as np
import pytest

from espnet3.components.metrics.bleu import BLEU
from espnet3.errors import ConfigError, MissingExtraError

WORDS = ["the", "a", "cat", "dog", "sat", "on", "under", "mat", ",", ".", "and", "very", "small"]


def texts(n, seed):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, size=generator.integers(3, 15))) for _ in range(n)]


def changed(text, seed):
    generator = np.random.default_rng(seed)
    return " ".join(
        w if generator.random() > 0.2 else generator.choice(WORDS) for w in text.split()
    )


REF = texts(60, seed=1)
HYP = [changed(text, number) for number, text in enumerate(REF)]
DATA = {"utt_id": [f"u{n}" for n in range(60)], "ref": REF, "hyp": HYP}


@pytest.mark.parametrize(
    "options", [{}, {"tokenize": "char"}, {"lowercase": True, "smooth_method": "floor"}]
)
def test_the_score_is_that_of_sacrebleu(options):
    from sacrebleu.metrics import BLEU as Sacre

    scorer = Sacre(**options)
    expected = scorer.corpus_score(HYP, [REF])
    numbers = BLEU(**options).compute(DATA)
    assert numbers["bleu"] == pytest.approx(expected.score, abs=1e-9)
    assert numbers["precision_4"] == pytest.approx(expected.precisions[3])
    assert (numbers["hyp_length"], numbers["ref_length"]) == (expected.sys_len, expected.ref_len)
    assert numbers["signature"] == str(scorer.get_signature())


def test_several_references_of_an_utterance():
    from sacrebleu.metrics import BLEU as Sacre

    other = [changed(text, 100 + number) for number, text in enumerate(HYP)]
    expected = Sacre().corpus_score(HYP, [REF, other])
    metric = BLEU(ref_key=["ref", "ref2"])
    assert metric.input_keys == ("ref", "ref2", "hyp")
    numbers = metric.compute({**DATA, "ref2": other})
    assert numbers["bleu"] == pytest.approx(expected.score, abs=1e-9)
    assert "nrefs:2" in numbers["signature"]


def test_the_interval_is_that_of_drawing_utterances():
    from sacrebleu.metrics import BLEU as Sacre

    numbers = BLEU().compute(DATA)
    generator, scorer = np.random.default_rng(7), Sacre()
    draws = [generator.integers(60, size=60) for _ in range(300)]
    scores = [
        scorer.corpus_score([HYP[i] for i in draw], [[REF[i] for i in draw]]).score
        for draw in draws
    ]
    low, high = np.quantile(scores, [0.025, 0.975])
    # Both are estimates, from other random numbers.
    assert numbers["bleu_interval"] == pytest.approx((low, high), abs=(high - low) / 5)
    assert numbers["bleu_interval"] == BLEU().compute(DATA)["bleu_interval"]
    assert BLEU(n_bootstrap=0).compute(DATA)["bleu_interval"] is None


def test_files_of_utterances_and_groups(awkward):
    speakers = [f"s{n % 3}" for n in range(60)]
    metric = BLEU(by="speaker", resample="speaker")
    numbers = metric({**DATA, "speaker": speakers}, "test set", awkward)
    lines = (awkward / "test set" / "BLEU.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == DATA["utt_id"]
    table = (awkward / "test set" / "BLEU.by_speaker.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in table] == ["speaker", "s0", "s1", "s2"]
    chosen = [n for n in range(60) if n % 3 == 0]
    part = {key: [values[n] for n in chosen] for key, values in DATA.items()}
    assert table[1].split("\t")[1:] == [f"{BLEU().compute(part)['bleu']:.2f}", "20"]
    assert numbers["bleu_interval"] != BLEU().compute(DATA)["bleu_interval"]


def test_wrong_arguments_are_refused_at_once():
    with pytest.raises(ConfigError, match=r"tokenize is '13b'.* Did you mean '13a'\? Write: token"):
        BLEU(tokenize="13b")
    with pytest.raises(ConfigError, match="Write: smooth_method: exp"):
        BLEU(smooth_method="some")
    with pytest.raises(ConfigError, match="Write: n_bootstrap: 1000"):
        BLEU(n_bootstrap=-1)


def test_without_the_package_the_line_that_installs_it_is_told(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt -e '.\[bleu\]'"):
        BLEU()
