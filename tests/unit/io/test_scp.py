import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from espnet3.errors import EspnetError, RecordError
from espnet3.io.scp import (
    ScpWriter,
    check_id,
    escape_value,
    load_scp,
    read_scp,
    unescape_value,
    write_scp,
)

NASTY = st.text(
    st.sampled_from("\\nrtu0q d8 \t\n\r\x00\x0b\x0c\x1c\x1d\x1e\x85\xa0\u2028\u3000\ud800é")
)
VALUES = st.text() | NASTY | st.text(st.characters(categories=["Cs", "Cc", "Zs", "Zl", "Zp"]))
IDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1).filter(
    lambda id: "\ufeff" not in id
)


@given(VALUES)
@example("")
@example(" ")
@example("\\u0020")
@example("\ud83d\ude00")
def test_every_value_survives_and_is_one_line_for_every_reader(value):
    text = escape_value(value)
    assert unescape_value(text) == value
    text.encode("utf-8")
    assert len(f"id {text}".splitlines()) == 1
    assert f"id {text}\n".split("\n", 1) == [f"id {text}", ""]
    if value:
        assert f"id {text}\r\n".split(maxsplit=1)[1].rstrip() == text


@given(st.dictionaries(IDS, VALUES))
def test_every_record_survives_a_file(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("scp") / "a.scp"
    write_scp(path, records)
    assert list(read_scp(path)) == list(records.items())
    assert path.read_bytes().count(b"\n") == len(records)


@pytest.mark.parametrize(
    "value",
    ["hello world", "two  blanks", "日本 語", "naïve", "/data/a b/c.flac", "feats.ark:123", "'\"%"],
)
def test_ordinary_values_stand_in_the_file_as_they_are(value):
    assert escape_value(value) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", r"a\nb"),
        ("a\tb\r", r"a\tb\r"),
        ("C:\\x", r"C:\\x"),
        (" a ", r"\u0020a\u0020"),
        ("\u3000a", r"\u3000a"),
        ("\x00\u2028\x85", r"\u0000\u2028\u0085"),
        ("\ud800", r"\ud800"),
    ],
)
def test_escapes_are_those_of_the_format(value, text):
    assert escape_value(value) == text


@pytest.mark.parametrize("text", [r"\q", r"\u12", r"\uzzzz", "end\\", r"C:\data"])
def test_unknown_escapes_of_foreign_files_stay_as_they_are(text):
    assert unescape_value(text) == text


@pytest.mark.parametrize("id", ["1089-134686-0000", "utt.0", "日本", "a\\nb", "../x", "#1", "😀"])
def test_words_are_good_ids(id):
    check_id(id)


@pytest.mark.parametrize(
    "id",
    [
        "a b",
        "a\tb",
        "a\n",
        " a",
        "a\u00a0b",
        "a\u3000",
        "\x00",
        "a\x7f",
        "a\x85",
        "\ud800",
        "\ufeffa",
    ],
)
def test_ids_with_white_space_or_control_characters_are_refused_with_a_way_to_replace_them(id):
    with pytest.raises(RecordError) as error:
        check_id(id)
    assert '"_".join(id.split())' in str(error.value)
    assert repr(id) in str(error.value)


@pytest.mark.parametrize(
    ("id", "fix"), [("", "Give the item a name"), (3, "str(id)"), (None, "str(id)")]
)
def test_empty_ids_and_other_types_are_refused_with_the_fix(id, fix):
    with pytest.raises(RecordError) as error:
        check_id(id)
    assert fix in str(error.value)


def test_record_error_is_ours_and_a_value_error_and_survives_pickle():
    error = pickle.loads(pickle.dumps(RecordError("message")))
    assert isinstance(error, EspnetError)
    assert isinstance(error, ValueError)
    assert str(error) == "message"


def test_writer_writes_one_line_per_record_in_order(folder):
    with ScpWriter(folder / "hyp.scp") as writer:
        writer.write("b", "x\ny")
        writer.write("a", "")
    assert (folder / "hyp.scp").read_bytes() == b"b x\\ny\na \n"
    assert load_scp(folder / "hyp.scp") == {"b": "x\ny", "a": ""}


def test_writer_refuses_a_repeated_id_and_goes_on(folder):
    with ScpWriter(folder / "hyp.scp") as writer:
        writer.write("a", "1")
        with pytest.raises(RecordError) as error:
            writer.write("a", "2")
        writer.write("b", "3")
    assert "'a' is there twice" in str(error.value)
    assert 'id = f"{speaker}-{id}"' in str(error.value)
    assert str(folder / "hyp.scp") in str(error.value)
    assert load_scp(folder / "hyp.scp") == {"a": "1", "b": "3"}


def test_writer_refuses_values_that_are_no_text_and_does_not_count_their_id(folder):
    with ScpWriter(folder / "hyp.scp") as writer:
        with pytest.raises(RecordError, match=r"str\(value\)"):
            writer.write("a", 3)
        writer.write("a", "3")
    assert load_scp(folder / "hyp.scp") == {"a": "3"}


def test_writer_can_be_closed_twice(folder):
    writer = ScpWriter(folder / "hyp.scp")
    writer.write("a", "1")
    writer.close()
    writer.close()
    assert load_scp(folder / "hyp.scp") == {"a": "1"}


def test_write_scp_keeps_the_old_file_after_an_error(folder):
    path = folder / "a.scp"
    write_scp(path, {"a": "1"})
    with pytest.raises(RecordError, match="twice"):
        write_scp(path, [("b", "1"), ("b", "2")])
    assert load_scp(path) == {"a": "1"}
    assert [p.name for p in folder.iterdir()] == ["a.scp"]


def test_kaldi_files_are_read(folder):
    path = folder / "wav.scp"
    path.write_bytes(
        b"\xef\xbb\xbfutt1\tsph2pipe -f wav a.sph |\r\nutt2 \t b.wav  \nutt3\nutt4 C:\\data\\q.wav"
    )
    assert load_scp(path) == {
        "utt1": "sph2pipe -f wav a.sph |",
        "utt2": "b.wav",
        "utt3": "",
        "utt4": "C:\\data\\q.wav",
    }


def test_only_a_newline_ends_a_line_of_a_foreign_file(folder):
    path = folder / "text"
    path.write_text("a x\u2028y\x0bz\x85w\nb 1\n", encoding="utf-8")
    assert load_scp(path) == {"a": "x\u2028y\x0bz\x85w", "b": "1"}


def test_empty_file_has_no_records(folder):
    (folder / "a.scp").touch()
    assert load_scp(folder / "a.scp") == {}


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        (b"a 2\n", "Make ids unique"),
        (b"\n", "sed -i"),
        (b" x y\n", "Write `<id> <value>`"),
        (b"na\xefve x\n", "iconv -f latin1 -t utf-8 '"),
        ("b\u00a0x\n".encode(), '"_".join(id.split())'),
    ],
)
def test_bad_lines_are_named_by_file_and_line_with_the_fix(folder, line, fix):
    path = folder / "a.scp"
    path.write_bytes(b"a 1\n" + line)
    records = read_scp(path)
    assert next(records) == ("a", "1")
    with pytest.raises(RecordError) as error:
        next(records)
    assert str(error.value).startswith(f"{path}:2: ")
    assert fix in str(error.value)
