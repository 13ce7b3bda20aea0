import pytest

from espnet3.components.text.spelling import CLEANERS, TextCleaner
from espnet3.errors import ConfigError


def test_none_changes_nothing():
    text = " \uff28ello,\u00a0 <unk> World \n"
    assert TextCleaner(None)(text) == text


@pytest.mark.parametrize(
    ("name", "text", "cleaned"),
    [
        ("lower", "ÀÉÎ Straße ДОМ", "àéî straße дом"),
        ("upper", "àéî дом", "ÀÉÎ ДОМ"),
        ("nfc", "cafe\u0301", "café"),
        ("nfkc", "\uff21\uff22\uff23 \uff11\uff12 \ufb01n", "ABC 12 fin"),
        ("no_tags", "a <unk> b<noise/> 1 < 2 > 0", "a   b  1 < 2 > 0"),
        ("split_hyphens", "twenty-one\u2014or\u2010so", "twenty one or so"),
        ("no_punctuation", "“Don\u2019t,” he said: 'rock 'n' roll'!", "Don't he said rock n roll"),
        ("no_punctuation", "¿Qué? 「東京」、です。 $5 + 3_000", "Qué 東京です $5 + 3000"),
    ],
)
def test_each_cleaner_does_what_its_name_says(name, text, cleaned):
    assert TextCleaner([name])(text) == cleaned


def test_cleaners_are_applied_in_their_order():
    assert TextCleaner(["no_tags", "no_punctuation"])("<s> a.") == "  a"
    assert TextCleaner(["no_punctuation", "no_tags"])("<.s> a.") == "  a"
    assert TextCleaner(["upper", "lower"])("Ab") == "ab"


def test_cleaning_twice_changes_nothing_more():
    text = "“\uff24on\u2019t” <unk> STOP-now, 50% \u2013 œuvre!"
    for name, clean in CLEANERS.items():
        assert clean(clean(text)) == clean(text), name


def test_a_misspelt_name_gets_the_right_one():
    with pytest.raises(ConfigError, match=r"'no_punctation'.*Did you mean 'no_punctuation'\?"):
        TextCleaner(["lower", "no_punctation"])


def test_an_unknown_name_gets_the_known_ones_and_the_way_to_write_an_own_function():
    with pytest.raises(ConfigError, match=r"Known: lower, upper.*write package\.module\.function"):
        TextCleaner(["whisper_en"])


def test_a_function_of_the_user_is_found_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "my_cleaning.py").write_text(
        "def shout(text): return text.upper() + '!'\nlength = len\nlimit = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert TextCleaner(["lower", "my_cleaning.shout"])("Hi") == "HI!"
    with pytest.raises(ConfigError, match=r"'my_cleaning' has no 'shuot'.*Did you mean 'shout'"):
        TextCleaner(["my_cleaning.shuot"])
    with pytest.raises(ConfigError, match=r"is no function but 3\. Write the dotted path"):
        TextCleaner(["my_cleaning.limit"])
    with pytest.raises(ConfigError, match=r"my_cleaning\.length of clean_types returned 2.*return"):
        TextCleaner(["my_cleaning.length"])("Hi")
