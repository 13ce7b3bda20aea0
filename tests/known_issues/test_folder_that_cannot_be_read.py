"""A run folder that vanishes or cannot be read is told of in words, and waited for a while."""

import errno
import os
import threading
import time
from dataclasses import replace

import pytest

from espnet3.cli.main import main
from espnet3.errors import EspnetError, RunFolderError
from espnet3.parallel.detached import folder_access
from espnet3.parallel.detached import overview as overview_module
from espnet3.parallel.detached.folder_access import reached
from espnet3.parallel.detached.handle import DetachedRun
from espnet3.parallel.detached.overview import Observer, wait_for
from tests.helpers.detached_parts import DetachedFolder
from tests.helpers.exhaustive import few

ERRORS = [
    errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP,
    errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EBUSY, errno.ENOMEM, errno.EMFILE,
    errno.ENXIO, errno.EREMOTEIO,
]  # fmt: skip
VERBS = ["status", "explain", "logs", "failed", "wait", "cancel", "resume", "retry", "merge"]


@pytest.fixture
def run(awkward):
    run = DetachedFolder(awkward / "out")
    yield run
    run.close()


@pytest.fixture
def complete(run):
    assert run.run() == 0
    return run


@pytest.fixture
def hasty(monkeypatch):
    """Let patience be short."""
    monkeypatch.setattr(folder_access, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(folder_access, "GONE_SECONDS", 0.3)
    monkeypatch.setattr(overview_module, "_PAUSE_SECONDS", (0.05, 0.05))


def broken(number, folder):
    """Return a function of the system that fails for what is below a folder."""

    def wrap(real):
        def call(path=".", *args, **kwargs):
            if not isinstance(path, int) and str(folder) in os.path.abspath(os.fsdecode(path)):
                raise OSError(number, os.strerror(number), os.fspath(path))
            return real(path, *args, **kwargs)

        return call

    return wrap


def break_folder(monkeypatch, number, folder):
    for name in ("stat", "lstat", "listdir", "scandir", "open", "mkdir"):
        monkeypatch.setattr(os, name, broken(number, folder)(getattr(os, name)))
    import builtins
    import io

    opened = broken(number, folder)(builtins.open)
    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(io, "open", opened)


@pytest.mark.parametrize("number", few(ERRORS, 5))
@pytest.mark.parametrize("verb", VERBS)
def test_each_command_says_what_is_wrong(run, hasty, monkeypatch, capsys, verb, number):
    words = [verb, str(run.out), *(["--failed"] if verb == "retry" else [])]
    with monkeypatch.context() as patched:
        break_folder(patched, number, run.out)
        assert main(words) == 1
    told = capsys.readouterr().err
    assert "[Errno" not in told
    assert "Traceback" not in told
    assert "out" in told


@pytest.mark.parametrize("number", ERRORS)
def test_each_method_of_the_handle_raises_an_error_of_ours(run, hasty, monkeypatch, number):
    handle = DetachedRun(run.out)
    methods = [
        handle.status, handle.logs, handle.explain, handle.cancel, handle.resume, handle.retry,
        handle.merge, handle.result, handle.wait,
    ]  # fmt: skip
    for method in methods:
        with monkeypatch.context() as patched:
            break_folder(patched, number, run.out)
            with pytest.raises(EspnetError):
                method()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
def test_wait_goes_on_when_the_folder_is_back(complete, hasty, monkeypatch, number):
    real, looks, lines = Observer.look, [], []

    def flaky(self):
        looks.append(1)
        if len(looks) <= 3:
            raise OSError(number, os.strerror(number), str(complete.out / "manifest.json"))
        return real(self)

    monkeypatch.setattr(Observer, "look", flaky)
    monkeypatch.setattr(folder_access, "PATIENCE_SECONDS", 30.0)
    monkeypatch.setattr(folder_access, "_PAUSE_SECONDS", 0.01)
    assert wait_for(complete.out, 60, warn=lines.append).state == "complete"
    assert len(lines) == 1
    assert os.strerror(number) in lines[0]
    assert "tried again for 30 s" in lines[0]


def test_wait_gives_up_after_a_bounded_time(complete, hasty, monkeypatch):
    def dead(self):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(complete.out))

    monkeypatch.setattr(Observer, "look", dead)
    with pytest.raises(RunFolderError, match=r"Input/output error"):
        wait_for(complete.out, warn=lambda line: None)


def in_a_moment(do):
    def later():
        time.sleep(0.3)
        do()

    thread = threading.Thread(target=later)
    thread.start()
    return thread


@pytest.mark.parametrize("becomes", ["nothing", "a file", "a link to nowhere"])
def test_a_folder_that_vanishes_while_it_is_waited_for(run, hasty, becomes):
    def vanish():
        run.out.rename(run.out.with_name("elsewhere"))
        if becomes == "a file":
            run.out.touch()
        if becomes == "a link to nowhere":
            run.out.symlink_to("nowhere")

    thread = in_a_moment(vanish)
    try:
        with pytest.raises(RunFolderError):
            wait_for(run.out, 60, warn=lambda line: None, sure_seconds=60.0)
    finally:
        thread.join()


def test_a_folder_that_is_moved_for_a_moment_is_waited_for(complete, hasty, monkeypatch):
    monkeypatch.setattr(folder_access, "GONE_SECONDS", 30.0)
    monkeypatch.setattr(folder_access, "_PAUSE_SECONDS", 0.01)
    away, real, looks = complete.out.with_name("away"), Observer.look, []

    def look(self):
        looks.append(1)
        if len(looks) == 2:
            complete.out.rename(away)
        if len(looks) == 4:
            away.rename(complete.out)
        seen = real(self)
        return (
            seen if len(looks) > 1 else replace(seen, status=replace(seen.status, state="running"))
        )

    monkeypatch.setattr(Observer, "look", look)
    assert wait_for(complete.out, 60, warn=lambda line: None).state == "complete"


def test_a_wrong_name_is_told_at_once(tmp_path, capsys):
    begin = time.monotonic()
    assert main(["wait", str(tmp_path / "no such")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert time.monotonic() - begin < folder_access.GONE_SECONDS


def test_what_is_not_about_the_folder_is_left_alone(tmp_path):
    for error in (
        TimeoutError("it is still running"),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/elsewhere/of/the/user"),
    ):
        with pytest.raises(type(error)) as raised, reached(tmp_path):
            raise error
        assert raised.value is error
