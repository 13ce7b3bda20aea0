import errno
import os
from pathlib import Path

import pytest

from espnet3.parallel.checkup import filesystem
from espnet3.parallel.checkup.filesystem import (
    Mount,
    check_folders,
    check_shared,
    find_mount,
    nearest_folder,
)


def test_a_good_folder_is_ok_and_nothing_stays_in_it(awkward):
    (finding,) = check_folders({"exp_dir": awkward})
    assert finding.level == "ok", finding
    assert "rename, links and clock are right" in finding.told
    assert list(awkward.iterdir()) == []


def test_a_folder_that_will_be_made_is_tried_above(tmp_path):
    (finding,) = check_folders({"exp_dir": tmp_path / "a" / "b"})
    assert finding.level == "ok"
    assert "(will be made)" in finding.told
    assert list(tmp_path.iterdir()) == []
    assert nearest_folder(tmp_path / "a" / "b") == tmp_path


def test_a_file_in_its_place_is_a_problem(tmp_path):
    (tmp_path / "exp").touch()
    (finding,) = check_folders({"exp_dir": tmp_path / "exp"})
    assert finding.level == "problem"
    assert "is no folder" in finding.told


@pytest.mark.parametrize(
    ("code", "fix"), [(errno.EDQUOT, "Make room"), (errno.EROFS, "a folder that you may write to")]
)
def test_what_cannot_be_written_is_a_problem(tmp_path, monkeypatch, code, fix):
    def refuse(path, data):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(filesystem, "write_bytes", refuse)
    (finding,) = check_folders({"log_directory": tmp_path})
    assert finding.level == "problem"
    assert os.strerror(code) in finding.told
    assert fix in finding.fix
    assert list(tmp_path.iterdir()) == []


def test_a_rename_that_replaces_a_taken_folder_is_a_problem(tmp_path, monkeypatch):
    rename = os.rename

    def replace(source, target):
        if target.exists():
            rename(target, target.with_name("replaced"))
        rename(source, target)

    monkeypatch.setattr(filesystem.os, "rename", replace)
    (finding,) = check_folders({"exp_dir": tmp_path})
    assert finding.level == "problem"
    assert "is not refused" in finding.told


def test_a_file_system_without_hard_links_is_a_warning(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(filesystem.os, "link", refuse)
    (finding,) = check_folders({"exp_dir": tmp_path})
    assert finding.level == "warning"
    assert "no hard links" in finding.told


def test_a_clock_that_is_off_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "clock_skew", lambda folder: 100.0)
    (finding,) = check_folders({"exp_dir": tmp_path})
    assert finding.level == "warning"
    assert "-100 s away" in finding.told


def test_little_space_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "MIN_FREE", 1e18)
    (finding,) = check_folders({"exp_dir": tmp_path})
    assert finding.level == "warning"
    assert "Make room" in finding.fix


def test_folders_of_this_machine_alone_are_warned_of():
    folders = {"exp_dir": Path("/tmp/exp"), "log_directory": Path("/")}
    (finding,) = check_shared(folders, needs_shared=True)
    assert finding.level == "warning"
    assert finding.told.startswith("exp_dir: /tmp/exp")
    assert "--submit" in finding.fix
    assert check_shared({"exp_dir": Path("/tmp/exp")}, needs_shared=False) == []
    judged = {"exp_dir"}
    assert check_shared({"exp_dir": Path("/tmp/exp")}, needs_shared=True, judged=judged) == []


MOUNTS = r"""22 1 0:20 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:5 - nfs4 server:/home rw
31 30 0:41 / /home/me/my\040tmp rw - tmpfs tmpfs rw
32 22 0:42 / /homestead rw - overlay overlay rw
33 22 0:43 / /tmp/mine rw - fuse.sshfs server:/ rw
"""


@pytest.mark.parametrize(
    ("folder", "kind", "is_local"),
    [
        ("/data", "ext4", False),  # this machine may be the one that serves it
        ("/home/me/exp", "nfs4", False),
        ("/home/me/my tmp/x", "tmpfs", True),
        ("/homestead/x", "overlay", True),
        ("/tmp/x", "ext4", True),
        ("/tmp/mine/x", "fuse.sshfs", False),
    ],
)
def test_mounts_tell_what_other_machines_can_see(tmp_path, folder, kind, is_local):
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    mount = find_mount(Path(folder), file)
    assert mount.kind == kind
    assert mount.is_local(folder) == is_local


def test_without_proc_nothing_is_known(tmp_path):
    assert find_mount(tmp_path, tmp_path / "none") == Mount()
