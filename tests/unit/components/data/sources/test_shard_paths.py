import pytest

from espnet3.components.data.sources.shard_source import expand_braces, find_shards
from espnet3.errors import ConfigError


def make(folder, *names):
    for name in names:
        (folder / name).write_bytes(b"")


def names(*args, **kwargs):
    return [shard.name for shard in find_shards(*args, **kwargs)]


def problem(*args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        find_shards(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a-{8..10}", ["a-8", "a-9", "a-10"]),
        ("a-{08..10}", ["a-08", "a-09", "a-10"]),
        ("{b,a}{1..2}", ["b1", "b2", "a1", "a2"]),
        ("plain", ["plain"]),
    ],
)
def test_braces_are_expanded_as_a_shell_does(pattern, expected):
    assert expand_braces(pattern) == expected


def test_a_pattern_is_looked_for_in_the_recipe_too(awkward, monkeypatch, tmp_path):
    make(awkward, "t-00.tar", "t-01.tar", "v.tar", "t-00.tar.index", ".hidden.tar")
    monkeypatch.chdir(tmp_path)
    assert names("t-{00..01}.tar", ".tar", awkward) == ["t-00.tar", "t-01.tar"]
    assert names("t-*.tar", ".tar", awkward) == ["t-00.tar", "t-01.tar"]
    assert names("v.tar", ".tar", awkward) == ["v.tar"]
    assert names(awkward, ".tar") == ["t-00.tar", "t-01.tar", "v.tar"]
    assert names(["v.tar", "t-{00..01}.tar"], ".tar", awkward) == ["v.tar", "t-00.tar", "t-01.tar"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(awkward):
    make(awkward, "a{1,2}.tar", "b*.tar")
    assert names(awkward / "a{1,2}.tar", ".tar") == ["a{1,2}.tar"]
    assert names(awkward / "b*.tar", ".tar") == ["b*.tar"]


def test_missing_shards_are_listed_with_the_shorter_pattern(tmp_path):
    make(tmp_path, *(f"t-{i:03d}.tar" for i in range(7)))
    message = problem(tmp_path / "t-{000..009}.tar", ".tar")
    assert f"3 of its 10 shards are missing: {tmp_path}/t-007.tar, " in message
    assert message.endswith(f"take those that are there: path: {tmp_path}/t-{{000..006}}.tar")


def test_a_hole_is_no_reason_to_shorten_the_pattern(tmp_path):
    make(tmp_path, "t-0.tar", "t-2.tar")
    message = problem(tmp_path / "t-{0..2}.tar", ".tar")
    assert "1 of its 3 shards are missing" in message
    assert message.endswith(
        "python run.py --stages create_dataset --training_config conf/training.yaml"
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("x.tra", "Did you mean 'x.tar'?"),
        ("y-*.tar", "no file is called like"),
        ("empty", "has no file *.tar. Correct it, or make the data: python run.py"),
        ("x-{9..2}.tar", "which counts down. Write: {2..9}"),
        (["x.tar", "x.tar"], "twice. Each utterance comes once; for more of them write a weight"),
        ([], "Write: path: FOLDER/*.tar"),
    ],
)
def test_a_wrong_path_says_what_to_write(tmp_path, monkeypatch, path, expected):
    make(tmp_path, "x.tar")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert expected in problem(path, ".tar")
