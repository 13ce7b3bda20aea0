import os
import re
import unicodedata
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from espnet3.errors import RecordError
from espnet3.io.scp import MAX_NAME_BYTES, check_id, safe_name

NASTY = st.text(
    st.sampled_from("ab./%-~ 2F:\\\n\x00\u0301\u0307é\ud800日"), min_size=1, max_size=12
)
LONG = st.builds(
    lambda head, unit, n: head + unit * n,
    st.sampled_from(["", "a", "/", "ab", "é"]),
    st.sampled_from(["x", "日", "/", "😀", "e\u0301", "%"]),
    st.integers(20, 210),
)
IDS = st.text(min_size=1) | NASTY | LONG


@pytest.mark.parametrize(
    "id", ["1089-134686-0000", "utt.0", "日本", "spk_1@a,b+c=d", "é", "Ü-हिन्दी"]
)
def test_ordinary_ids_are_their_own_names(id):
    assert safe_name(id) == id


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("../x", "%2E.%2Fx"),
        ("a/b", "a%2Fb"),
        (".", "%2E"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("-rf", "%2Drf"),
        ("a b:c", "a%20b%3Ac"),
        ("50%", "50%25"),
        ("e\u0301", "e%CC%81"),
        ("/\u0307", "%2F%CC%87"),
    ],
)
def test_unsafe_characters_are_percent_encoded(id, name):
    assert safe_name(id) == name


def test_upper_and_lower_case_are_kept():
    assert safe_name("UTT") == "UTT"
    assert safe_name("utt") == "utt"


@given(IDS)
@example("a" * 201)
@example("/" * 100)
@example("日" * 70)
def test_every_name_is_safe_and_stays_in_its_folder(id):
    name = safe_name(id)
    assert os.path.normpath(os.path.join("/folder", name)) == f"/folder/{name}"
    assert os.path.basename(name) == name
    assert not name.startswith((".", "-", "~"))
    assert 0 < len(name.encode("utf-8")) <= MAX_NAME_BYTES
    assert name.isprintable()
    assert not re.search(r"""[\s\\'"*?$`;&|<>:]""", name)
    assert unicodedata.is_normalized("NFC", name)
    check_id(name)


@given(IDS)
def test_short_names_decode_to_their_id(id):
    name = safe_name(id)
    if "%-" not in name:
        assert unquote(name, errors="surrogatepass") == id


@given(st.lists(IDS, unique=True, min_size=2))
@example(["utt.0", "utt.1"])
@example(["é", "e\u0301"])
@example(["a/b", "a%2Fb"])
@example(["a" * 200, "a" * 201, "a" * 202])
def test_different_ids_have_different_names(ids):
    names = {unicodedata.normalize("NFC", safe_name(id)) for id in ids}
    assert len(names) == len(ids)


def test_long_id_is_cut_and_cannot_meet_the_name_of_another_id():
    name = safe_name("x" * 300)
    assert re.fullmatch(r"x{166}%-[0-9a-f]{32}", name)
    assert safe_name(name) != name
    assert safe_name("x" * 200) == "x" * 200


def test_long_id_is_not_cut_inside_a_character_or_an_escape():
    for n in range(3):
        for unit in ("日", "/"):
            name = safe_name("a" * n + unit * 100)
            unquote(name.rpartition("%-")[0], errors="strict")
            assert len(name.encode()) <= MAX_NAME_BYTES


@pytest.mark.parametrize("id", ["", None, 3, b"x"])
def test_empty_ids_and_other_types_are_refused_with_the_fix(id):
    with pytest.raises(RecordError) as error:
        safe_name(id)
    assert 'id = f"utt{index}"' in str(error.value)
    assert repr(id) in str(error.value)


def test_every_name_can_be_created(folder):
    ids = ["../x", "a/b", ".", "..", "a\nb", "\ud800", "日" * 100, "a" * 300, "-", "*", "\x00"]
    for id in ids:
        (folder / (safe_name(id) + ".wav")).touch(exist_ok=False)
    assert len(list(folder.iterdir())) == len(ids)
