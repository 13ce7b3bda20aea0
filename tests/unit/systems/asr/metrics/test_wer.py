import jiwer

from espnet3.systems.asr.metrics.wer import WER

REFERENCES = ["the cat sat", "ça va très bien", "東京 に 行く", "one\ntwo\u2003three  four"]
HYPOTHESES = ["the bat sat down", "sa va bien", "東京 へ 行く", "one two three four"]


def test_it_is_the_rate_of_jiwer():
    numbers = WER().compute({"ref": REFERENCES, "hyp": HYPOTHESES})
    references = [" ".join(text.split()) for text in REFERENCES]
    assert numbers["rate"] == 100 * jiwer.wer(references, HYPOTHESES)


def test_words_stand_between_any_white_space():
    assert WER().split(" one\ntwo\u2003three\t four ") == ["one", "two", "three", "four"]


def test_nothing_is_normalised_unless_asked_for():
    data = {"ref": ["Hello, world"], "hyp": ["hello world"]}
    assert WER().compute(data)["substitutions"] == 1
    assert WER(clean_types=["lower", "no_punctuation"]).compute(data)["rate"] == 0.0
