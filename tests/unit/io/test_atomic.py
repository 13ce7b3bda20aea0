import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from espnet3.errors import RecordError
from espnet3.io import atomic
from espnet3.io.atomic import (
    fsync_dir,
    fsync_file,
    is_temp_name,
    open_atomic,
    write_bytes,
    write_json,
    write_text,
)

ROOT = Path(__file__).parents[3]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start_python(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def write_half_and_raise(path: Path, error: type[BaseException]) -> None:
    with open_atomic(path) as file:
        file.write("new")
        file.flush()
        raise error


def test_text_and_bytes_are_written_as_they_are(folder):
    write_text(folder / "t", "a\r\nb\n日本")
    write_bytes(folder / "b", b"\x00\xff\r\n")
    assert (folder / "t").read_bytes() == "a\r\nb\n日本".encode()
    assert (folder / "b").read_bytes() == b"\x00\xff\r\n"
    assert names(folder) == ["b", "t"]


def test_text_mode_does_not_translate_newlines(folder):
    with open_atomic(folder / "t") as file:
        file.write("é\n")
    assert (folder / "t").read_bytes() == "é\n".encode()


def test_json_keeps_the_order_of_keys_and_ends_with_a_newline(folder):
    write_json(folder / "m.json", {"b": 1, "a": ["é", None]})
    assert (folder / "m.json").read_text() == (
        '{\n  "b": 1,\n  "a": [\n    "é",\n    null\n  ]\n}\n'
    )
    write_json(folder / "m.json", {"b": [1]}, indent=None)
    assert (folder / "m.json").read_text() == '{"b": [1]}\n'


def test_json_refuses_nan_with_its_key_and_keeps_the_old_file(folder):
    path = folder / "m.json"
    write_json(path, 1)
    with pytest.raises(RecordError) as error:
        write_json(path, {"loss": [0.5, float("nan")]})
    assert "value['loss'][1] is nan" in str(error.value)
    assert "write None" in str(error.value)
    assert str(path) in str(error.value)
    assert path.read_text() == "1\n"


def test_relative_path_and_change_of_folder_inside_the_block(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    with open_atomic("here") as file:
        file.write("x")
        os.chdir(tmp_path)
    assert names(folder) == ["here"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_exception_in_the_block_keeps_the_old_file_and_removes_the_temp_file(folder, error):
    path = folder / "f"
    write_text(path, "old")
    with pytest.raises(error):
        write_half_and_raise(path, error)
    assert path.read_text() == "old"
    assert names(folder) == ["f"]


def test_nothing_is_visible_before_the_end_of_the_block(folder):
    with open_atomic(folder / "f", "wb") as file:
        file.write(b"new")
        file.flush()
        (temp,) = names(folder)
        assert temp.startswith(f".f.tmp-{os.getpid()}-")
        assert is_temp_name(temp)
    assert names(folder) == ["f"]


def test_disk_full_at_the_last_flush_keeps_the_old_file(folder):
    # A size limit of the process fails the same write, with EFBIG for ENOSPC.
    code = """
        import resource, signal, sys
        from espnet3.io.atomic import write_text
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        try:
            write_text(sys.argv[1], "n" * 100)
        except OSError as error:
            print(error.errno)
    """
    write_text(folder / "f", "old")
    process = start_python(code, folder / "f")
    output, _ = process.communicate(timeout=30)
    assert int(output) == errno.EFBIG
    assert (folder / "f").read_text() == "old"
    assert names(folder) == ["f"]


def test_failing_fsync_keeps_the_old_file(folder, monkeypatch):
    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_text(folder / "f", "old")
    monkeypatch.setattr(atomic.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_text(folder / "f", "new")
    assert (folder / "f").read_text() == "old"
    assert names(folder) == ["f"]


def test_sigkill_in_the_block_keeps_the_old_file(folder):
    code = """
        import sys, time
        from espnet3.io.atomic import open_atomic
        with open_atomic(sys.argv[1]) as file:
            file.write("new" * 100_000)
            file.flush()
            print("ready", flush=True)
            time.sleep(60)
    """
    path = folder / "f"
    write_text(path, "old")
    with start_python(code, path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    temps = [name for name in names(folder) if name != "f"]
    assert len(temps) == 1
    assert is_temp_name(temps[0])
    write_text(path, "new")
    assert path.read_text() == "new"


def test_new_file_has_the_permissions_that_open_would_give(folder):
    old = os.umask(0o027)
    try:
        write_text(folder / "ours", "x")
        (folder / "plain").write_text("x")
    finally:
        os.umask(old)
    assert (folder / "ours").stat().st_mode == (folder / "plain").stat().st_mode
    assert (folder / "ours").stat().st_mode & 0o777 == 0o640


def test_private_file_stays_private_when_it_is_replaced(folder):
    path = folder / "key"
    path.touch(mode=0o600)
    write_text(path, "secret")
    assert path.stat().st_mode & 0o777 == 0o600


def test_name_near_the_limit_of_the_file_system_works(folder):
    name = "日" * 84 + "abc"
    assert len(name.encode()) == 255
    write_text(folder / name, "x")
    assert names(folder) == [name]


def test_missing_folder_is_named_with_the_command_that_creates_it(folder):
    with pytest.raises(FileNotFoundError) as error:
        write_text(folder / "no" / "f", "x")
    assert "mkdir -p" in str(error.value)
    assert error.value.filename == str(folder / "no")


def test_other_modes_are_refused_with_the_modes_to_use(folder):
    with pytest.raises(ValueError, match='mode="w" or mode="wb"'):
        with open_atomic(folder / "f", "a"):
            pass
    assert names(folder) == []


@pytest.mark.parametrize("sync", [True, False])
def test_sync_waits_for_file_and_folder_and_can_be_left_to_a_later_commit(
    folder, monkeypatch, sync
):
    synced = []
    monkeypatch.setattr(
        atomic.os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}"))
    )
    write_bytes(folder / "f", b"x", sync=sync)
    if sync:
        temp, parent = synced
        assert is_temp_name(os.path.basename(temp))
        assert parent == str(folder)
    else:
        assert synced == []
    assert (folder / "f").read_bytes() == b"x"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_file_system_that_cannot_sync_folders_is_tolerated(folder, monkeypatch, code):
    def refuse(descriptor: int) -> None:
        raise OSError(code, "refused")

    monkeypatch.setattr(atomic.os, "fsync", refuse)
    fsync_dir(folder)
    (folder / "f").touch()
    with pytest.raises(OSError, match="refused"):
        fsync_file(folder / "f")


def test_other_errors_of_syncing_a_folder_are_raised(folder, monkeypatch):
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(atomic.os, "fsync", fail)
    with pytest.raises(OSError, match="broken disk"):
        fsync_dir(folder)
    with pytest.raises(FileNotFoundError):
        fsync_dir(folder / "missing")


def test_fsync_on_real_files_and_folders_works_and_leaks_no_descriptor(folder):
    (folder / "f").write_text("x")
    before = len(os.listdir("/proc/self/fd"))
    fsync_file(folder / "f")
    fsync_dir(folder)
    assert len(os.listdir("/proc/self/fd")) == before


def test_ordinary_names_are_no_temp_names():
    assert not is_temp_name("manifest.json")
    assert not is_temp_name(".hidden.tmp-x")


def test_import_is_cheap_enough_for_the_start_of_a_worker():
    code = """
        import sys
        before = set(sys.modules)
        import espnet3.io.atomic, espnet3.io.scp, espnet3.io.tables
        heavy = {"numpy", "soundfile", "dataclasses", "inspect", "typing", "pathlib", "tempfile"}
        print(sorted((set(sys.modules) - before) & heavy))
    """
    process = start_python(code)
    assert process.communicate(timeout=30)[0] == "[]\n"
