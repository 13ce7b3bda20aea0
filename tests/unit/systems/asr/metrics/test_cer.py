import jiwer

from espnet3.systems.asr.metrics.cer import CER

REFERENCES = ["i can spell", "i hope", "ice cream"]
HYPOTHESES = ["i kan cpell", "i hop", "icecream"]


def test_it_is_the_rate_of_jiwer_where_blanks_count():
    numbers = CER().compute({"ref": REFERENCES, "hyp": HYPOTHESES})
    assert numbers["rate"] == 100 * jiwer.cer(REFERENCES, HYPOTHESES)
    assert numbers["unit"] == "characters"
    assert numbers["n_units"] == sum(map(len, REFERENCES))


def test_blanks_are_left_out_on_request():
    data = {"ref": ["今天 天气 好"], "hyp": ["今天天气好"]}
    assert CER().compute(data)["deletions"] == 2
    numbers = CER(count_spaces=False).compute(data)
    assert (numbers["rate"], numbers["n_units"]) == (0.0, 5)


def test_white_space_between_two_words_is_one_character():
    data = {"ref": [" a \n b "], "hyp": ["a b"]}
    assert CER().compute(data)["rate"] == 0.0
    assert CER().compute(data)["n_units"] == 3


def test_the_choice_is_among_the_settings():
    assert CER().settings["count_spaces"] is True
