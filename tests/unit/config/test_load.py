import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ReadonlyConfigError

from espnet3.config import load
from espnet3.config.load import Source, load_config, read_values
from espnet3.config.resolve import resolved
from espnet3.config.sources import Layer, merge
from espnet3.errors import ConfigError


def write(folder: Path, text: str, name: str = 'it\'s a "conf" file.yaml') -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def error_of(files: object, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(files, overrides)  # type: ignore[arg-type]
    return str(caught.value)


# Values and merging


def test_values_are_those_of_omegaconf(tmp_path):
    text = "a: 1e-3\nb: 2024-01-02\nc: [1, x, null]\nd: {e: on, 1: '1'}\nf: |\n  x\n  y\n"
    path = write(tmp_path, text)
    assert load_config(path).config == OmegaConf.load(path)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "null\n"])
def test_an_empty_file_is_an_empty_config(tmp_path, text):
    assert load_config(str(write(tmp_path, text))).config == {}


def test_later_files_win_mappings_merge_and_lists_replace(tmp_path):
    base = write(tmp_path, "a: {x: 1, y: 2}\nl: [1, 2, 3]\n", "base.yaml")
    top = write(tmp_path, "a: {y: 3}\nl: [9]\nn: new\n", "top.yaml")
    config = load_config([base, top]).config
    assert config == {"a": {"x": 1, "y": 3}, "l": [9], "n": "new"}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a: [1]", "a: {b: 1}", {"a": {"b": 1}}),
        ("a: {b: 1}", "a: [1]", {"a": [1]}),
        ("a: {b: 1}", "a: null", {"a": None}),
        ("a: 3", "a: {b: 1}", {"a": {"b": 1}}),
        ("a: 3", "a: ???", {"a": 3}),
        ("a: ???", "a: 3", {"a": 3}),
    ],
)
def test_a_value_of_another_kind_replaces_the_earlier_one(tmp_path, first, second, expected):
    files = [write(tmp_path, first, "1.yaml"), write(tmp_path, second, "2.yaml")]
    assert load_config(files).config == expected


def test_interpolations_stay_lazy_across_files_and_overrides(tmp_path):
    first = write(tmp_path, "exp: run1\nout: ${exp}/decode\n", "1.yaml")
    loaded = load_config([first], ["exp=run2"])
    assert "${exp}" in loaded.to_yaml()
    assert loaded.config.out == "run2/decode"


def test_a_change_below_an_interpolated_mapping_leaves_its_target_alone(tmp_path):
    path = write(tmp_path, "common: {x: 1, y: 2}\na: ${common}\n")
    config = load_config(path, ["a.x=5"]).config
    assert config == {"common": {"x": 1, "y": 2}, "a": {"x": 5, "y": 2}}


def test_the_config_is_read_only(tmp_path):
    config = load_config(write(tmp_path, "a: {b: 1}")).config
    with pytest.raises(ReadonlyConfigError):
        config.a.b = 2


def test_an_unquoted_walltime_arrives_as_it_is_written(tmp_path):
    text = "unquoted: 12:00:00\nshort: 1:30\nquoted: '12:00:00'\nleading_zero: 08:00:00\n"
    config = load_config(write(tmp_path, text), ["override=12:00:00"]).config
    assert config.unquoted == config.override == config.quoted == "12:00:00"
    assert config.short == "1:30"
    assert config.leading_zero == "08:00:00"  # which YAML 1.1 itself takes for a text


# Overrides


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a=1", 1),
        ("a=1e-3", 1e-3),
        ("a=[1,2]", [1, 2]),
        ("a={x: 1}", {"x": 1}),
        ("a=null", None),
        ("a=true", True),
        ('a="x y"', "x y"),
        ('a="4"', "4"),
        ("a=x=y", "x=y"),
        ("a=", ""),
        ("a= ", ""),
    ],
)
def test_override_values_are_typed_as_yaml(tmp_path, override, value):
    assert load_config(write(tmp_path, "b: 1"), [override]).config == {"a": value, "b": 1}


def test_an_override_may_interpolate(tmp_path):
    assert load_config(write(tmp_path, "b: 7"), ["a.x=${b}"]).config.a.x == 7


def test_an_override_reaches_into_a_list(tmp_path):
    path = write(tmp_path, "layers: [{n: 1, k: 3}, {n: 2}]\nspeakers: {1: anna}\n")
    loaded = load_config(path, ["layers.0.n=5", "layers[1]=6", "speakers.1=eve"])
    assert loaded.config == {"layers": [{"n": 5, "k": 3}, 6], "speakers": {1: "eve"}}
    assert loaded.source_of("layers.0.n") == "command line: layers.0.n=5"
    assert loaded.source_of("layers.0.k") == f"{path}:1"


def test_a_malformed_override_shows_the_correct_form(tmp_path):
    path = write(tmp_path, "a: 3\nl: [1]\n")
    assert error_of(path, "foo").endswith("Write, for example: foo=VALUE")
    for text in ("=3", "a..b=1", ".a=1", ""):
        assert error_of(path, text).endswith("Write, for example: parallel.n_workers=4")
    assert "Write: a=4" in error_of(path, "+a=4")
    assert "'a=\"*.wav\"'" in error_of(path, "a=*.wav")
    assert error_of(path, "a.b=1").endswith("but a is 3. Write: a=VALUE")
    assert "l is a list of 1, which has no item '4'" in error_of(path, "l.4=1")
    assert error_of(path, "l.x=1").endswith("l=[...]")


def test_an_index_into_an_interpolated_list_is_refused_rather_than_guessed(tmp_path):
    path = write(tmp_path, "a: [1, 2]\nb: ${a}\n")
    message = error_of(path, "b.0=5")
    assert "command line: b.0=5" in message
    assert message.endswith("Do not mix a list and a mapping under one key.")


# Sources


def test_sources_name_file_and_line_of_the_last_to_set_a_key(tmp_path):
    base = write(tmp_path, "parallel:\n  env: slurm\n  n_workers: 2\nl:\n  - a\n  - b\n", "a.yaml")
    top = write(tmp_path, "\nparallel: {n_workers: 4}\nl: [z]\n", "b.yaml")
    loaded = load_config([base, top], ["parallel.options.queue=gpu"])
    assert loaded.sources["parallel.env"] == Source(str(base), 2)
    assert loaded.source_of("parallel.n_workers") == f"{top}:2"
    assert loaded.source_of("l.0") == loaded.source_of("l[0]") == f"{top}:3"
    assert loaded.source_of("parallel.options") == "command line: parallel.options.queue=gpu"
    assert "l.1" not in loaded.sources


def test_source_of_falls_back_to_the_nearest_parent(tmp_path):
    path = write(tmp_path, "a:\n  b: {}\n")
    loaded = load_config(path)
    assert loaded.source_of("a.b.c.d") == f"{path}:2"
    assert "unknown" in loaded.source_of("nowhere.to.be.found")


def test_an_open_value_does_not_take_over_the_source(tmp_path):
    first, second = write(tmp_path, "a: 1", "1.yaml"), write(tmp_path, "\na: ???", "2.yaml")
    assert load_config([first, second]).source_of("a") == f"{first}:1"


def test_merged_anchors_keep_their_own_lines(tmp_path):
    text = "base: &base\n  x: 1\n  y: 2\nuse:\n  <<: *base\n  y: 3\n"
    loaded = load_config(write(tmp_path, text, "a.yaml"))
    assert loaded.config.use == {"x": 1, "y": 3}
    assert [loaded.sources[f"use.{k}"].line for k in "xy"] == [2, 6]


def test_the_saved_config_loads_as_the_same_config(tmp_path):
    text = "w: '12:00:00'\nx: ${w}\ny: '1e3'\nz: 'on'\nn: {l: [1, null]}\nu: né\n"
    loaded = load_config(write(tmp_path, text))
    saved = tmp_path / "new folder" / "config.yaml"
    loaded.save(saved)
    assert load_config(saved).config == loaded.config
    assert load_config(saved).to_yaml() == loaded.to_yaml()
    assert [p.name for p in saved.parent.iterdir()] == ["config.yaml"]


# Values from below and above


def test_files_win_over_below_above_over_files_and_overrides_over_all(tmp_path):
    path = write(tmp_path, "b: file\nc: file\nd: file\nm: {y: 2}\n")
    context = write(tmp_path, "\nc: context\nd: context\n", "context.yaml")
    below = {"a": "below", "b": "below", "m": {"x": 1, "y": 1}, "l": ["${a}", {"z": 1}]}
    loaded = load_config(path, ["d=typed"], below=below, above=load_config(context))
    values = {"a": "below", "b": "file", "c": "context", "d": "typed", "m": {"x": 1, "y": 2}}
    assert loaded.config == {**values, "l": ["below", {"z": 1}]}
    assert [loaded.source_of(key) for key in "abcd"] == [
        "default", f"{path}:1", f"{context}:2", "command line: d=typed",
    ]  # fmt: skip
    assert (loaded.source_of("m.x"), loaded.source_of("m.y")) == ("default", f"{path}:4")
    assert loaded.source_of("l.1.z") == "default"
    assert loaded.files == (str(path),)


def test_what_is_given_from_below_and_above_is_left_alone(tmp_path):
    below = {"m": {"x": [1]}}
    above = load_config(write(tmp_path, "m: {z: 1}\n", "above.yaml"))
    load_config(write(tmp_path, "m: {y: 1}\n"), ["m.x.0=5", "m.z=7"], below=below, above=above)
    assert below == {"m": {"x": [1]}}
    assert above.config == {"m": {"z": 1}}


def test_below_may_be_a_config_whose_interpolations_stay_open(tmp_path):
    below = OmegaConf.create({"exp": "run1", "out": "${exp}/decode"})
    assert load_config(write(tmp_path, "exp: run2\n"), below=below).config.out == "run2/decode"


def test_no_files_give_what_is_below():
    loaded = load_config([], ["b=2"], below={"a": 1})
    assert loaded.config == {"a": 1, "b": 2}
    assert loaded.files == ()


# Copies


@pytest.mark.parametrize(
    ("key", "is_set"),
    [
        ("a", True),
        ("a.b", True),
        ("a.c", False),
        ("null_value", True),
        ("open", False),
        ("l.0.x", True),
        ("l[0].x", True),
        ("l.1", False),
        ("same.b", True),
        ("same.c", False),
        ("nowhere", True),
        ("speakers.1", True),
        ("b", False),
        ("a.b.c", False),
    ],
)
def test_has_tells_whether_a_key_is_set(tmp_path, key, is_set):
    text = "a: {b: 1}\nnull_value: null\nopen: ???\nl: [{x: 1}]\nsame: ${a}\nnowhere: ${xyz}\n"
    assert load_config(write(tmp_path, text + "speakers: {1: anna}\n")).has(key) is is_set


# Resolved copies


def test_resolved_is_a_read_only_copy_without_interpolations(tmp_path):
    text = "n: 3\na: {b: '${n}', c: 'x${n}'}\nd: ${a}\nl: ['${n}']\ne: null\nopen: ???\n"
    loaded = load_config(write(tmp_path, text))
    config = loaded.resolved()
    assert "${" not in OmegaConf.to_yaml(config)
    assert config == {
        "n": 3, "a": {"b": 3, "c": "x3"}, "d": {"b": 3, "c": "x3"}, "l": [3], "e": None,
        "open": "???",
    }  # fmt: skip
    with pytest.raises(ReadonlyConfigError):
        config.a.b = 2
    assert "${n}" in loaded.to_yaml()


def test_resolved_keeps_literal_text_literal(tmp_path):
    text = "a: echo \\${HOME}\nb: 'x\\\\\\${Y}'\nc: ${a}!\n"
    loaded = load_config(write(tmp_path, text))
    config = loaded.resolved()
    assert config == loaded.config
    assert (config.a, config.c) == ("echo ${HOME}", "echo ${HOME}!")


def test_a_resolved_config_is_read_by_a_process_without_resolvers(tmp_path):
    write(tmp_path, "a\n${b}\n", "tokens.txt")
    path = write(tmp_path, "tag: ${self_name:}\nt: ${load_line:tokens.txt}\n", "train.yaml")
    pickled = tmp_path / "config.pickle"
    pickled.write_bytes(pickle.dumps(load_config(path).resolved()))
    code = (
        "import pickle, sys\n"
        "config = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert 'espnet3' not in sys.modules\n"
        "print(config.tag, *config.t)"
    )
    command = [sys.executable, "-c", code, str(pickled)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "train a ${b}\n"


def test_a_pickled_config_resolves_itself_in_a_new_process(tmp_path):
    pickled = tmp_path / "config.pickle"
    path = write(tmp_path, "tag: ${self_name:}\n", "train.yaml")
    pickled.write_bytes(pickle.dumps(load_config(path)))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).resolved().tag)"
    command = [sys.executable, "-c", code, str(pickled)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "train\n"


def test_a_resolver_may_give_any_object(tmp_path):
    OmegaConf.register_new_resolver("test_load", lambda: {1, 2}, replace=True)
    assert load_config(write(tmp_path, "a: ${test_load:}\n")).resolved().a == {1, 2}


# Secrets


def test_the_saved_config_holds_no_secrets_and_loads_again(tmp_path):
    text = "hub: {token: hf_secret_1}\nurl: x?k=hf_secret_1\nidx_key: utt_id\nout: ${idx_key}\n"
    loaded = load_config(write(tmp_path, text), ["hub.password=hf_secret_2"])
    loaded.save(tmp_path / "saved.yaml")
    saved = (tmp_path / "saved.yaml").read_text()
    assert "hf_secret" not in saved
    assert load_config(tmp_path / "saved.yaml").config == {
        "hub": {"token": "<redacted>", "password": "<redacted>"},
        "url": "x?k=<redacted>",
        "idx_key": "utt_id",
        "out": "utt_id",
    }
    assert loaded.config.hub.token == "hf_secret_1"
    assert loaded.source_of("hub.password") == "command line: hub.password=<redacted>"


# Errors of files


def test_a_missing_file_suggests_its_neighbours(tmp_path):
    known = write(tmp_path, "", "parallel_slurm.yaml")
    assert f"Did you mean '{known}'?" in error_of(tmp_path / "paralel_slurm.yaml")
    assert error_of(tmp_path / "x.yaml").endswith(f"YAML files in {tmp_path}: {known.name}.")
    assert "Its folder" in error_of(tmp_path / "nowhere" / "x.yaml")
    assert f"is a folder, not a config file. YAML files in {tmp_path}" in error_of(tmp_path)


def test_a_duplicate_key_names_both_lines(tmp_path):
    path = write(tmp_path, "a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert error_of(path) == (
        f"b is set twice in {path}: in line 2 and in line 4. Delete or rename one of the two."
    )


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "brackets"),
        ("a:\n\tb: 1\n", 2, "spaces, not with tabs"),
        ("a: b: c\n", 1, "Quote a value"),
        ("a: 1\n---\nb: 2\n", 2, "a file of its own"),
        ("a: 1\nb: !mine 3\n", 2, "Remove the tag"),
    ],
)
def test_bad_yaml_names_the_line_and_a_way_out(tmp_path, text, line, hint):
    path = write(tmp_path, text)
    message = error_of(path)
    assert message.startswith(f"{path}:{line} is not valid YAML")
    assert hint in message


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "just text\n", "3\n"])
def test_a_file_without_a_mapping_is_refused(tmp_path, text):
    assert error_of(write(tmp_path, text)).endswith("Write: key: value")


def test_values_that_omegaconf_cannot_hold_name_key_and_line(tmp_path):
    path = write(tmp_path, "a:\n  b: echo ${HOME\n")
    message = error_of(path)
    assert message.startswith(f"a.b in {path}:2 cannot be read")
    assert r"write \${...}" in message
    assert "cannot be read" in error_of(write(tmp_path, "null: 3\n"))


def test_an_anchor_that_contains_itself_is_refused(tmp_path):
    assert "contains itself" in error_of(write(tmp_path, "a: &x\n  b: *x\n"))


def test_a_file_that_is_not_utf8_says_how_to_convert_it(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("a: né".encode("latin1"))
    assert "iconv" in error_of(path)


def test_plain_values_are_ones_own(tmp_path):
    loaded = load_config({"a": {"b": [1]}, "c": "${a}"})
    loaded.plain()["c"]["b"].append(2)
    assert loaded.plain() == {"a": {"b": [1]}, "c": {"b": [1]}}
    assert resolved(loaded.config.c, loaded=loaded) == {"b": [1]}


def test_what_is_read_from_a_file_is_read_again(tmp_path):
    (tmp_path / "a.yaml").write_text("tokens: ${load_line:tokens.txt}\n")
    (tmp_path / "tokens.txt").write_text("a\n")
    loaded = load_config(tmp_path / "a.yaml")
    assert loaded.plain() == {"tokens": ["a"]}
    (tmp_path / "tokens.txt").write_text("a\nb\n")
    assert loaded.plain() == {"tokens": ["a", "b"]}


def test_a_block_resolves_although_another_does_not():
    loaded = load_config({"a": "${nowhere}", "b": {"c": "${d}"}, "d": 1})
    assert resolved(loaded.config.b, loaded=loaded) == {"c": 1}


_LEAVES = st.sampled_from([1, 2.5, None, True, "", "x", "???", "${a}", "${c.b}"])
_VALUES = st.recursive(
    _LEAVES,
    lambda values: (
        st.lists(values, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b", "c", 1]), values, max_size=3)
    ),
    max_leaves=8,
)
_MAPPINGS = st.dictionaries(st.sampled_from(["a", "b", "c", 1]), _VALUES, max_size=3)


@given(_MAPPINGS, _MAPPINGS)
@example({"a": "${c}"}, {"a": {"b": 1}})
@example({"a": {"b": "???"}}, {"a": {"b": "???", "c": "???"}})
def test_layers_merge_as_omegaconf_merges_them(lower, upper):
    def clash(base, top):
        pairs = [(base[key], top[key]) for key in base.keys() & top.keys()]
        return any(
            {type(left), type(right)} == {dict, list}
            or (type(left) is type(right) is dict and clash(left, right))
            for left, right in pairs
        )

    assume(not clash(lower, upper))  # which OmegaConf refuses, and we let the later one win
    try:
        expected = OmegaConf.to_container(OmegaConf.merge(lower, upper))
    except OmegaConfBaseException:
        with pytest.raises(ConfigError, match="do not merge"):
            merge(Layer(lower), Layer(upper))
    else:
        assert repr(merge(Layer(lower), Layer(upper)).values) == repr(expected)  # in order, too


# Files that several parts of a stage read


@pytest.fixture
def n_loads(monkeypatch):
    """Return a function that tells how often configs were loaded since the last call."""
    calls = []
    real = load.load_config
    monkeypatch.setattr(load, "load_config", lambda *a, **k: (calls.append(a), real(*a, **k))[1])

    def count():
        n_calls = len(calls)
        calls.clear()
        return n_calls

    return count


def test_the_values_of_a_file_are_parsed_once_as_long_as_it_is_the_same(tmp_path, n_loads):
    path = write(tmp_path, "a: {b: [1]}\n")
    first = read_values(path)
    first["a"]["b"].append(2)
    assert read_values(path) == {"a": {"b": [1]}}
    assert n_loads() == 1
    write(tmp_path, "a: {b: [3]}\n")  # of the same size, and perhaps within a tick of the clock
    assert read_values(path) == {"a": {"b": [3]}}
    assert n_loads() == 1


def test_values_that_are_elsewhere_are_read_each_time(tmp_path, n_loads, monkeypatch):
    path = write(tmp_path, "a: ${oc.env:PLACE}\n")
    monkeypatch.setenv("PLACE", "one")
    assert read_values(path) == {"a": "one"}
    monkeypatch.setenv("PLACE", "two")
    assert read_values(path) == {"a": "two"}
    write(tmp_path, "b: 1\n", "other.yaml")
    path = write(tmp_path, "defaults: [other, _self_]\na: 1\n", "whole.yaml")
    assert read_values(path) == {"a": 1, "b": 1}
    write(tmp_path, "b: 2\n", "other.yaml")
    assert read_values(path) == {"a": 1, "b": 2}
    assert n_loads() == 4


def test_a_file_that_cannot_be_read_is_told_as_by_load_config(tmp_path):
    path = write(tmp_path, "a: 1\n")
    assert read_values(path) == {"a": 1}
    path.unlink()
    with pytest.raises(ConfigError, match="conf"):
        read_values(path)


def test_many_files_are_not_all_kept(tmp_path, n_loads):
    paths = [write(tmp_path, f"a: {i}\n", f"{i}.yaml") for i in range(40)]
    assert [read_values(path)["a"] for path in paths] == list(range(40))
    assert len(load._kept) <= 16
