import os
from dataclasses import dataclass, field

import pytest

from espnet3.io.shared_files import DamagedFileError, read_record


@dataclass(frozen=True)
class Note:
    shard: int
    seconds: float = 0.0
    files: dict[str, dict[str, int]] = field(default_factory=dict)


def _write(folder, text):
    path = folder / "note.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_record_comes_back(awkward):
    path = _write(awkward, '{"shard": 3, "seconds": 2, "files": {"hyp": {"lines": 5}}}')
    assert read_record(path, Note) == Note(3, 2, {"hyp": {"lines": 5}})


def test_keys_of_a_newer_version_are_ignored(tmp_path):
    assert read_record(_write(tmp_path, '{"shard": 3, "new": [1]}'), Note) == Note(3)


def test_a_file_that_is_not_there_is_none(tmp_path):
    assert read_record(tmp_path / "none", Note) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "3", '{"shard": "3"}', '{"shard": null}', '{"shard": true}', "{}",
     '{"shard": 1.5}', '{"shard": 1, "files": [1]}', '{"shard": 1, "files": {"a": 1}}',
     b"\xff\xfe", "[" * 100_000, '{"shard": 1, "seconds": "now"}'],
)  # fmt: skip
def test_other_content_is_damage_and_names_the_file(tmp_path, text):
    path = _write(tmp_path, text)
    with pytest.raises(DamagedFileError, match=r"note\.json is damaged"):
        read_record(path, Note)


def test_what_cannot_be_read_is_no_damage(tmp_path):
    with pytest.raises(IsADirectoryError):
        read_record(tmp_path, Note)
    loop = tmp_path / "loop"
    os.symlink(loop, loop)
    with pytest.raises(OSError, match="symbolic links"):
        read_record(loop, Note)
