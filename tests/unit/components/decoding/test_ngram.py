"""Back-off scores from an ARPA file, by hand."""

import math

import pytest

from espnet3.components.data.errors import DataError
from espnet3.components.decoding.ngram import NGram

ARPA = """
Some models begin with a comment.

\\data\\
ngram 1=4
ngram 2=2
ngram 3=1

\\1-grams:
-1.0 </s>
-99 <s> -0.5
-0.4 a -0.3
-0.6 b

\\2-grams:
-0.2\t<s> a\t-0.1
-0.1\ta b

\\3-grams:
-0.05\t<s> a b

\\end\\
"""


@pytest.fixture
def arpa(awkward):
    path = awkward / "model.arpa"
    path.write_text(ARPA)
    return path


def log10(value):
    return pytest.approx(value / math.log10(math.e))


def test_seen_ngrams_and_those_backed_off_to(arpa):
    model = NGram.read(arpa)
    assert model.order == 3
    assert model.log_prob(["a", "b"]) == log10(-0.2 - 0.05 - 1.0)  # </s> after "a b": no weights
    assert model.log_prob(["b"]) == log10(-0.5 - 0.6 - 1.0)
    assert model.log_prob(["a", "a"]) == log10(-0.2 + (-0.1 - 0.3 - 0.4) + (-0.3 - 1.0))


def test_an_unknown_word_is_all_but_impossible(arpa):
    assert NGram.read(arpa).log_prob(["x"]) == log10(-0.5 - 100 - 1.0)


def test_unk_stands_for_unknown_words(arpa):
    arpa.write_text(ARPA.replace("ngram 1=4", "ngram 1=5").replace("-0.6 b", "-0.6 b\n-2 <unk>"))
    assert NGram.read(arpa).log_prob(["x"]) == log10(-0.5 - 2 - 1.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ngram 2=2", "ngram 2=3", "line 19, has 2 2-grams, but says 3"),
        ("-0.1\ta b", "-0.1\ta c", "line 17, has no 2-gram of known words: 'c'"),
        ("-0.1\ta b", "-0.1\ta", "line 17, has 2 fields"),
        ("\\end\\\n", "", "ends within the 3-grams"),
        ("\\data\\", "", "has no counts"),
        ("<s> -0.5", "c -0.5", "known words: '<s>'"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(arpa, old, new, message):
    assert old in ARPA
    arpa.write_text(ARPA.replace(old, new))
    with pytest.raises(DataError, match="train_ngram") as caught:
        NGram.read(arpa)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["missing.arpa", "missing.arpa.gz"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(DataError, match=name):
        NGram.read(tmp_path / name)
