"""Configs of a few hundred bytes that stand for gigabytes, or are nested without end."""

import logging
import shutil

import pytest

from espnet3.config.load import load_config
from espnet3.config.trust import PackedModelError
from espnet3.errors import ConfigError
from espnet3.systems.asr.inference import Speech2Text
from espnet3.systems.asr.trained_model import read_yaml


def laughs(n_levels, n, item):
    """Return YAML in which each line names the one before several times."""
    lines = ["a0: &a0 [ha, ha]"]
    for i in range(1, n_levels):
        lines.append(f"a{i}: &a{i} " + item(", ".join([f"*a{i - 1}"] * n)))
    return "\n".join(lines) + "\n"


PAIRS = list(zip("abcdef", "bcdefg", strict=True))
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}], y{i}: 1}}\n" for i in range(1, 12)
)
LONG_WAY = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 3000))
BOMBS = {
    "lists": laughs(10, 9, lambda inner: f"[{inner}]"),
    "212 bytes": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n" for p, c in PAIRS),
    "mappings": "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {{p: *a{i - 1}, q: *a{i - 1}, r: *a{i - 1}}}\n" for i in range(1, 30)
    ),
    "merges": MERGES,
    "aliases one after the other": LONG_WAY,
    "keys": "a: &a [x]\n? [[1, 2], *a]\n: 1\n",
    "nested lists": "a: " + "[" * 1500 + "]" * 1500 + "\n",
    "nested mappings": "".join(f"{' ' * i}a:\n" for i in range(1500)),
    "nested in one line": "a: " + "{b: " * 1500 + "1" + "}" * 1500 + "\n",
    "a long number": "a: " + "1" * 5000 + "\n",
    "many values": "a: [" + "1," * 120_000 + "]\n",
}  # fmt: skip


# As long as it takes to read 100,000 values, twice.
SLOW = pytest.param("many values", marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("name", [*(name for name in BOMBS if name != "many values"), SLOW])
def test_the_file_and_its_line_are_told(tmp_path, name):
    file = tmp_path / "bomb.yaml"
    file.write_text(BOMBS[name])
    with pytest.raises(ConfigError, match=r"bomb\.yaml") as caught:
        load_config(file)
    assert len(str(caught.value)) < 600
    with pytest.raises(PackedModelError, match=r"bomb\.yaml"):
        read_yaml(file)


def test_the_number_of_values_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("espnet3.config.files._MOST_VALUES", 1_000)
    file = tmp_path / "a.yaml"
    file.write_text("a: [" + "1," * 900 + "]\n")
    load_config(file)
    file.write_text("a: [" + "1," * 1_100 + "]\n")
    with pytest.raises(ConfigError, match=r"a\.yaml"):
        load_config(file)


def test_a_packed_model_with_a_bomb_is_refused(tmp_path):
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / "meta.yaml").write_text("format: 1\n" + BOMBS["lists"])
    with pytest.raises(PackedModelError, match=r"meta\.yaml"):
        Speech2Text.from_packed(folder)
    shutil.make_archive(str(tmp_path / "model"), "gztar", folder)
    with pytest.raises(PackedModelError, match=r"meta\.yaml"):
        Speech2Text.from_packed(tmp_path / "model.tar.gz")


def test_anchors_and_merges_still_work(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(
        "base: &base {x: 1, y: &list [1, 2]}\nother: {<<: *base, x: 2}\nagain: [*base, *list]\n"
    )
    config = load_config(file).config
    assert config.other == {"x": 2, "y": [1, 2]}
    assert config.again[0].y == config.again[1]


def test_forty_levels_are_enough(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: " + "[" * 35 + "1" + "]" * 35)
    load_config(file).resolved()


@pytest.mark.parametrize(
    "override",
    [
        "a=" + "[" * 1500 + "]" * 1500,
        "a=" + "[" * 1500,
        "a=" + "{b: " * 1500 + "}" * 1500,
        ".".join("a" * 1500) + "=1",
        "a=[&a [x,x,x,x,x,x,x,x,x]" + "".join(
            f", &{c} [{','.join([f'*{p}'] * 9)}]"
            for p, c in PAIRS) + "]",
        "a=" + "1" * 5000,
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_overrides_are_bounded_as_well(tmp_path, override):
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, [override])
    assert len(str(caught.value)) < 1_200


def test_an_override_below_a_deep_key(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: " + "{b: " * 30 + "{}" + "}" * 30)
    key = "a" + ".b" * 30 + ".c" * 8
    with pytest.raises(ConfigError, match="levels"):
        load_config(file, [f"{key}=[[[[[1]]]]]"])


REFERENCES = {
    "a long chain": "".join(f"k{i}: ${{k{i + 1}}}\n" for i in range(60)) + "k60: 1\n",
    "texts": "k0: hahahaha\n" + "".join(
        f'k{i}: "${{k{i - 1}}}${{k{i - 1}}}"\n' for i in range(1, 24)
    ),
    "lists": "k0: [1, 2]\n" + "".join(
        f'k{i}: ["${{k{i - 1}}}", "${{k{i - 1}}}", "${{k{i - 1}}}"]\n' for i in range(1, 20)
    ),
    "mappings": "k0: {a: 1}\n" + "".join(
        f'k{i}: {{a: {{b: "${{k{i - 1}}}", c: "${{k{i - 1}.a}}", d: "${{k{i - 1}}}"}}}}\n'
        for i in range(1, 20)
    ),
    "relative": "x:\n  k0: hahahaha\n" + "".join(
        f'  k{i}: "${{.k{i - 1}}}${{.k{i - 1}}}"\n' for i in range(1, 24)
    ),
    "resolvers": "k0: hahahaha\n" + "".join(
        f'k{i}: "${{oc.select:k{i - 1}}}${{oc.select:k{i - 1}}}"\n' for i in range(1, 24)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
def test_interpolations_are_counted_before_they_are_resolved(tmp_path, name):
    file = tmp_path / "a.yaml"
    file.write_text(REFERENCES[name])
    with pytest.raises(ConfigError, match=r"a\.yaml:\d+"):
        load_config(file).resolved()


def test_interpolations_in_a_circle_are_told_as_before(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: ${b}\nb: ${a}\nc: ${oc.select:c}x\n")
    with pytest.raises(ConfigError, match="cannot be resolved"):
        load_config(file).resolved()


def test_defaults_that_pull_in_each_other_too_often(tmp_path):
    for i in range(40):
        (tmp_path / f"f{i}.yaml").write_text(f"defaults: [f{i + 1}, f{i + 1}]\n")
    (tmp_path / "f40.yaml").write_text("a: 1\n")
    with pytest.raises(ConfigError, match=r"f\d+\.yaml:1.*Name fewer"):
        load_config(tmp_path / "f0.yaml")
    for i in range(60):
        (tmp_path / f"g{i}.yaml").write_text(f"defaults: [g{i + 1}]\n")
    (tmp_path / "g60.yaml").write_text("a: 1\n")
    with pytest.raises(ConfigError, match=r"g\d+\.yaml:1"):
        load_config(tmp_path / "g0.yaml")
    (tmp_path / "h.yaml").write_text("defaults:\n  - " + "a/" * 400 + "a: x\n")
    with pytest.raises(ConfigError, match=r"h\.yaml:2.*levels"):
        load_config(tmp_path / "h.yaml")


@pytest.mark.parametrize("text", ['"a\\0b"', '["a\\0b"]', '{"a\\0b": 1}'])
def test_a_nul_is_told_with_its_place(tmp_path, text):
    file = tmp_path / "a.yaml"
    file.write_text(f"x: 1\nexp_dir: {text}\n")
    with pytest.raises(ConfigError, match=r"exp_dir.*a\.yaml:2.*NUL"):
        load_config(file)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "null\n", "{}\n"])
def test_an_empty_file_is_named(tmp_path, caplog, text):
    file = tmp_path / "nothing.yaml"
    file.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert load_config(file).config == {}
    assert "nothing.yaml is empty" in caplog.text
