"""N-grams: probabilities that sum to 1, better than unigrams, read back as they were written."""

import gzip
import math
import random

import pytest

from espnet3.components.decoding.ngram import NGram
from espnet3.components.decoding.ngram_estimate import estimate, train_ngram
from espnet3.components.text.tokenizer import CharacterTokenizer
from espnet3.errors import ConfigError
from tests.helpers.exhaustive import pairs

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def texts(n, seed):
    """Return digit strings in which each digit is mostly followed by its successor."""
    draw = random.Random(seed)
    found = []
    for _ in range(n):
        digit, words = draw.randrange(10), []
        for _ in range(draw.randint(1, 7)):
            words.append(DIGITS[digit])
            digit = (digit + 1) % 10 if draw.random() < 0.8 else draw.randrange(10)
        found.append(" ".join(words))
    return found


@pytest.mark.parametrize(("order", "n_texts"), pairs([1, 2, 3, 5], [1, 3, 300]))
def test_probabilities_sum_to_1_after_every_context(order, n_texts, awkward):
    train = texts(n_texts, seed=1)
    model = NGram.read(train_ngram(train, order, awkward / "model.arpa"))
    words = [word for word in model.words if word != "<s>"]
    contexts = {model.start(), ()}
    for text in [*train, *texts(20, seed=2), "nine zero nine nine unheard one"]:
        context = model.start()
        for word in text.split():
            _, context = model.score(context, word)
            contexts.add(context)
    for context in contexts:
        total = sum(math.exp(model.score_id(context, model.word_id(word))) for word in words)
        assert total == pytest.approx(1.0, abs=1e-5)


def test_longer_contexts_predict_unseen_texts_better(tmp_path):
    perplexity = {}
    for order in (1, 2, 3):
        path = train_ngram(texts(500, seed=1), order, tmp_path / f"{order}.arpa")
        perplexity[order] = NGram.read(path).perplexity(texts(200, seed=2))
    # Uniform over 10 digits and the end is 11; the source itself has about 3.5.
    assert perplexity[1] > 9
    assert perplexity[2] < 4.5
    assert perplexity[3] < 4.5


def test_a_small_model_by_hand():
    # Unigrams: each of the 2 words and the end follows so many different words.
    orders = estimate([["a", "b"], ["a", "b"], ["b"]], 2)
    continuation = {"a": 1, "b": 2, "</s>": 1}
    discount = {1: 0.5, 2: 1.0}
    freed = sum(discount[count] for count in continuation.values()) / 4
    unigram = {
        word: (count - discount[count]) / 4 + freed / 4 for word, count in continuation.items()
    }
    unigram["<unk>"] = freed / 4
    for word, prob in unigram.items():
        assert orders[0][(word,)][0] == pytest.approx(math.log10(prob))
    # After <s>: a twice, b once; what the discounts free goes to the unigrams.
    freed_after_begin = (1.0 + 0.5) / 3
    assert orders[0][("<s>",)][1] == pytest.approx(math.log10(freed_after_begin))
    prob = (2 - 1.0) / 3 + freed_after_begin * unigram["a"]
    assert orders[1][("<s>", "a")][0] == pytest.approx(math.log10(prob))


def test_the_same_texts_give_the_same_bytes_also_zipped(tmp_path):
    train = texts(50, seed=1)
    plain = [train_ngram(train, 3, tmp_path / f"{i}.arpa").read_bytes() for i in range(2)]
    zipped = [train_ngram(train, 3, tmp_path / f"{i}.arpa.gz").read_bytes() for i in range(2)]
    assert plain[0] == plain[1] == gzip.decompress(zipped[0])
    assert zipped[0] == zipped[1]
    sentence = ["one", "two", "nine"]
    scores = {NGram.read(tmp_path / name).log_prob(sentence) for name in ("0.arpa", "0.arpa.gz")}
    assert len(scores) == 1


def test_tokens_of_a_tokenizer_are_the_words(tmp_path):
    tokenizer = CharacterTokenizer.from_texts(["a cab"])
    tokenizer.save(tmp_path / "tokenizer")
    path = train_ngram(["a cab", "cab"], 3, tmp_path / "x.arpa", tokenizer=tmp_path / "tokenizer")
    assert set(NGram.read(path).words) == {"<s>", "</s>", "<unk>", "<space>", "a", "b", "c"}


@pytest.mark.parametrize(
    ("train", "order", "message"),
    [
        ([], 2, "at least one"),
        (["one <s> two"], 2, "Remove it"),
        (["one"], 0, "order: 3"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(train, order, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train_ngram(train, order, tmp_path / "x.arpa")
    assert not (tmp_path / "x.arpa").exists()
