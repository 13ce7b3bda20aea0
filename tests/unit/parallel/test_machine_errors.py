import errno

import pytest

from espnet3.parallel.execute import is_machine_error


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EIO", "EROFS", "ESTALE"])
def test_a_disk_that_is_full_or_broken_is_trouble_of_the_machine(name):
    number = getattr(errno, name)
    assert is_machine_error(OSError(number, "text", "/scratch/x"), "/run")
    assert is_machine_error(OSError(number, "text"), "/run")  # as write() says it
    assert is_machine_error(OSError(number, "text", b"/scratch/x"), None)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "text", "/x"), ValueError("No space"), MemoryError()]
)
def test_other_errors_are_the_items(error):
    assert not is_machine_error(error, "/run")


def test_the_run_folder_is_no_part_of_the_machine(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path / "a", tmp_path / "link" / "a"):
        assert not is_machine_error(OSError(errno.ENOSPC, "text", str(path)), str(tmp_path))
    beside = f"{tmp_path}-other/a"
    assert is_machine_error(OSError(errno.ENOSPC, "text", beside), str(tmp_path))
