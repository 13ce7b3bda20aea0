"""What `tests/helpers/fork_server.py` forks is what a start for real would have given."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import fork_server
from tests.helpers.waiting import wait_until

# "torch" is in their text, so that they may be forked.
SHOW = """
import json, os, signal, sys, threading  # torch
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "name": __name__,
    "file": globals().get("__file__"), "cwd": os.getcwd(), "environ": dict(os.environ),
    "parent": os.getppid(), "group": os.getpgid(0), "session": os.getsid(0),
    "command": open("/proc/self/cmdline", "rb").read().rstrip(b"\\0").decode().split("\\0"),
    "signals": {n: str(signal.getsignal(n)) for n in (1, 2, 10, 13, 15)},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "umask": os.umask(0),
    "executable": sys.executable, "threads": threading.active_count(), "prefix": sys.prefix,
    "line": sys.stdout.line_buffering, "through": sys.stdout.write_through,
    "writes_bytecode": not sys.dont_write_bytecode, "stdin": sys.stdin.read(),
}))
"""


@pytest.fixture(scope="module", autouse=True)
def _ready():
    if os.environ.get(fork_server.COLD) or os.environ.get(fork_server.QUICK):
        pytest.skip("everything starts for real")
    fork_server.wait_until_ready()


@pytest.fixture(params=["script", "-c", "-m", "-P -m", "-u"])
def command(request, tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    words = {"script": ["show.py"], "-c": ["-c", SHOW], "-m": ["-m", "espnet3.cli", "run"]}
    words |= {"-P -m": ["-P", "-m", "espnet3.cli", "run"], "-u": ["-u", "show.py"]}
    return [sys.executable, *words[request.param], "a", "-b", "c d"]


def both(*args, is_warm=True, **options):
    """Return how a program ends for real, and how it ends forked."""
    options = {"capture_output": True, "text": True, "timeout": 60, **options}
    with fork_server.paused():
        real = subprocess.run(*args, **options)
    before = fork_server.n_forked()
    forked = subprocess.run(*args, **options)
    assert (fork_server.n_forked() > before) == is_warm, "it is started the other way"
    return real, forked


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start_new_session": True},
        {"process_group": 0},
        {"env": {"PYTHONUNBUFFERED": "1"}},
        {"env": {"PYTHONUNBUFFERED": ""}},
    ],
    ids=str,
)
def test_a_program_sees_the_same(command, tmp_path, options):
    if "env" in options:
        options = {"env": {**os.environ, **options["env"]}}
    real, forked = both(command, cwd=tmp_path, input="some\nwords", **options)
    if "-m" in command:
        assert (forked.returncode, forked.stderr) == (real.returncode, real.stderr)
        return
    seen = [json.loads(done.stdout) for done in (real, forked)]
    assert seen[1]["parent"] == os.getpid()
    for each in seen:
        # Libraries write into the environment below Python's, which only a real start hands on.
        each["environ"] = {k: v for k, v in each["environ"].items() if k in os.environ}
        own = {each.pop("group"), each.pop("session")}
        assert (os.getsid(0) in own) == ("start_new_session" not in options)
    assert seen[0] == seen[1]


ENDS = {
    "SystemExit(7)": "raise SystemExit(7)",
    "a text": "raise SystemExit('in words')",
    "an error": "def f():\n    raise ValueError('of a value')\nf()",
    "Ctrl-C": "import os; os.kill(os.getpid(), 2)\nwhile True: pass",
    "both": "class Both(KeyboardInterrupt, SystemExit): code = 130\nraise Both(130)",
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "SIGTERM": "import os; os.kill(os.getpid(), 15)",
    "abort": "import os; os.abort()",
    "_exit": "import os; print('lost'); os._exit(3)",
    "atexit": "import atexit; atexit.register(print, 'at exit'); print('before')",
    "a thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()",
    "an open file": "open('written', 'w').write('all of it')",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_program_ends_the_same(tmp_path, end):
    (tmp_path / "program.py").write_text(f"{end}\n# torch\n")
    real, forked = both([sys.executable, "program.py"], cwd=tmp_path)
    assert real.returncode == forked.returncode
    assert (real.stdout, real.stderr) == (forked.stdout, forked.stderr)


def test_it_hears_signals_and_is_waited_for():
    code = "import signal, time  # torch\nprint('here', flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_files_are_passed_by_their_number():
    reader, writer = os.pipe()
    code = f"import os  # torch\nos.write({writer}, b'through')\nos.fstat({reader})"
    done = subprocess.run(
        [sys.executable, "-c", code], pass_fds=[writer], capture_output=True, text=True
    )
    assert os.read(reader, 20) == b"through"
    assert "Bad file descriptor" in done.stderr  # those that were not passed are not there
    os.close(reader)
    os.close(writer)


def test_what_it_starts_is_its_own_and_of_its_session(tmp_path):
    inner = "import os; print(os.getppid(), os.getsid(0))  # torch"
    outer = f"import os, subprocess, sys\nprint(os.getpid(), os.getsid(0), flush=True)\nsubprocess.run([sys.executable, '-c', {inner!r}])"  # noqa: E501
    for new in (False, True):
        words = subprocess.run(
            [sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True, start_new_session=new
        ).stdout.split()
        assert words[:2] == words[2:]


def test_nothing_is_left_of_one_that_is_killed():
    code = "import time  # torch\nprint('here', flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        own = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(own) == 1, "its zygote"
        process.kill()
    wait_until(lambda: not _is_alive(own[0]))


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    "name", ["PYTHONHASHSEED", "DASK_LOGGING__DISTRIBUTED", "LC_ALL", "HOME", fork_server.COLD]
)
def test_what_libraries_read_at_their_import_is_started_for_real(name):
    both([sys.executable, "-c", "'torch'"], env={**os.environ, name: "1"}, is_warm=False)


@pytest.mark.parametrize(("name", "value"), fork_server._LEFT_BEHIND.items())
def test_what_libraries_leave_behind_is_no_wish_of_a_test(name, value):
    environ = {**os.environ, name: value}
    both([sys.executable, "-c", "'torch'"], env=environ, is_warm=True)


@pytest.mark.parametrize("module", ["torch.py", "sitecustomize.py", "yaml/__init__.py"])
@pytest.mark.parametrize("way", ["PYTHONPATH", "cwd"])
def test_a_module_that_hides_another_is_found(tmp_path, module, way):
    (tmp_path / module).parent.mkdir(exist_ok=True)
    (tmp_path / module).write_text("mine = 1")
    options = {"env": {**os.environ, way: str(tmp_path)}} if way == "PYTHONPATH" else {}
    both([sys.executable, "-c", "'torch'"], cwd=tmp_path, **options, is_warm=False)


def test_what_needs_nothing_heavy_is_started_for_real(tmp_path):
    both([sys.executable, "-c", "import json"], is_warm=False)
    both([sys.executable, "-I", "-c", "'torch'"], is_warm=False)
    both([sys.executable, "-c", "'torch' in sys.modules"], is_warm=False)


@pytest.mark.cold
def test_a_test_may_ask_for_real_starts():
    both([sys.executable, "-c", "'torch'"], is_warm=False)


def test_a_missing_folder_is_told_as_usual(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        subprocess.run([sys.executable, "-c", "'torch'"], cwd=tmp_path / "nowhere")
