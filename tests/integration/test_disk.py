"""A disk that is full, limited or read-only: a clear error, nothing lost, and the way on."""

import os
import subprocess

import pytest

from tests.helpers.exhaustive import few
from tests.helpers.job_runs import Job
from tests.helpers.phrases import says_to_rerun
from tests.helpers.waiting import wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")


@pytest.fixture
def small_disk(tmp_path):
    """Mount a tmpfs of 400 kB."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder])
    if made.returncode:
        pytest.skip("this sandbox does not allow mounts")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def remount(folder, options: str) -> int:
    return subprocess.run(["mount", "-o", f"remount,{options}", folder]).returncode


@needs_root
@pytest.mark.parametrize("n_workers", few([2, 1], 1))
@pytest.mark.parametrize("line", [4000, 8000], ids=["full in the merge", "full in a shard"])
def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(
    small_disk, tmp_path, n_workers, line
):
    settings = {"n_workers": n_workers, "line": line, "seconds": 0}
    undisturbed = Job(tmp_path / "undisturbed", **settings)
    undisturbed.succeed()
    run = Job(small_disk / "out", **settings)
    failed = run.run()
    assert failed.returncode == 1
    assert "No space left on device" in failed.stderr
    assert "Make room" in failed.stderr
    assert says_to_rerun(failed.stderr)
    done = run.done_files()
    assert done
    assert remount(small_disk, "size=4m") == 0
    run.succeed()
    assert done.items() <= run.done_files().items()
    assert run.text == undisturbed.text
    run.assert_tidy()


@pytest.mark.parametrize("n_workers", few([2, 1], 1))
def test_a_limit_on_file_size_is_told_and_the_run_goes_on_without_it(tmp_path, n_workers):
    import resource

    settings = {"n_workers": n_workers, "line": 20_000, "seconds": 0, "parallel": {"retries": 0}}
    undisturbed = Job(tmp_path / "undisturbed", **settings)
    undisturbed.succeed()
    run = Job(tmp_path / "out", **settings)
    process = run.start()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "File too large" in told
    run.succeed()
    assert run.text == undisturbed.text


@needs_root
@pytest.mark.parametrize("n_workers", few([2, 1], 1))
def test_a_folder_that_becomes_read_only_is_told(small_disk, reference, n_workers):
    run = Job(small_disk / "out", n_workers=n_workers, fault="driver between commits")
    run.run()
    wait_until(lambda: remount(small_disk, "ro") == 0)  # the workers may still be dying
    failed = run.run()
    assert failed.returncode == 1
    assert "Read-only file system" in failed.stderr
    assert "choose another output_dir" in failed.stderr
    assert remount(small_disk, "rw,size=4m") == 0
    run.succeed()
    assert run.text == reference


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_told(tmp_path):
    tmp_path.chmod(0o555)
    failed = Job(tmp_path / "out").run()
    tmp_path.chmod(0o755)
    assert failed.returncode == 1
    assert "Permission denied" in failed.stderr


def test_an_output_dir_that_is_a_file_is_told(tmp_path):
    (tmp_path / "out").write_text("")
    failed = Job(tmp_path / "out").run()
    assert failed.returncode == 1
    assert "choose another output_dir" in failed.stderr


@needs_root
def test_a_finished_run_can_be_asked_for_on_a_read_only_disk(small_disk):
    run = Job(small_disk / "out", n_workers=1)
    run.succeed()
    assert remount(small_disk, "ro") == 0
    assert "complete already" in run.succeed()
