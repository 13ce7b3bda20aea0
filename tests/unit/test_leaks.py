"""The fixture that looks for leaks must see them; each kind in a pytest of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LEAKS = '''
import os, signal, subprocess, sys, threading
import pytest

ends = threading.Event()
started = []

@pytest.fixture(scope="module")
def of_the_module():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()

@pytest.fixture(scope="session")
def nanny():
    """A process that starts its child again when that was killed, and tells its id."""
    again = ["sh", "-c", "while true; do sleep 62 & echo $!; wait $!; done"]
    process = subprocess.Popen(again, stdout=subprocess.PIPE, start_new_session=True)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

class Owner:
    """Ends its process when it is collected."""

    def __init__(self):
        self.process, self.itself = subprocess.Popen(["sleep", "63"]), self

    def __del__(self):
        self.process.kill()
        self.process.wait()

@pytest.fixture(scope="session", autouse=True)
def tidy():
    yield
    ends.set()
    for process in started:
        process.kill()
        process.wait()

def test_child():
    started.append(subprocess.Popen(["sleep", "61"]))

def test_orphan():
    out = subprocess.check_output(["sh", "-c", "sleep 7 >/dev/null & echo $!"], text=True)

def test_thread():
    threading.Thread(target=ends.wait, name="of ours", daemon=True).start()

def test_fork():
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)

def test_fixture_of_the_module(of_the_module):
    pass

def test_tidy():
    subprocess.run(["true"], check=True)
    thread = threading.Thread(target=str)
    thread.start()
    thread.join()

def test_fixture_of_the_session(nanny):
    os.kill(int(nanny.stdout.readline()), signal.SIGKILL)
    assert int(nanny.stdout.readline())

def test_cycle():
    Owner()
'''


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    root = tmp_path_factory.mktemp("leaks")
    folder = root / "tests"  # pytest asks a conftest.py below the root less
    folder.mkdir()
    (folder / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nimport tests.helpers.leaks\n"
        "tests.helpers.leaks._PATIENCE = 2.0\ntests.helpers.leaks._COLLECTION_SECONDS = 0.1\n"
        "from tests.conftest import *\n"
        "from tests.conftest import _no_leaks, _no_leaks_of_fixtures\n"
    )
    (folder / "test_x.py").write_text(LEAKS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rEf", folder]
    command += ["--rootdir", root]
    env_free = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100)
    return env_free.stdout


@pytest.mark.parametrize(
    ("test", "what"),
    [
        ("test_child", "left behind: process .*sleep 61"),
        ("test_orphan", "left behind: process .*sleep 7.*test_orphan"),
        ("test_thread", "left behind: thread 'of ours'"),
        ("test_fork", "forked the test process"),
    ],
)
def test_a_leak_is_named_with_its_test(told, test, what):
    import re

    assert re.search(rf"::{test} {what}", told), told


def test_what_is_tidy_or_of_a_fixture_is_fine(told):
    summary = told[told.index("short test summary") :]
    assert summary.count("ERROR") == 4, told
    assert "test_tidy" not in summary
    assert "test_fixture_of" not in summary
    assert "test_cycle" not in summary
