"""Processes that are forked early, and become the child of a detached worker when it needs one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from espnet3.shards.records import RecordPaths, read_workers
from tests.helpers.waiting import is_alive, wait_for_end, wait_until

pytestmark = pytest.mark.cold
ROOT = Path(__file__).parents[2]

# Its top level is that of `detached.work`: nothing runs before the fork.
PROGRAM = """
import json, os, signal, socket, sys, time
TOP
from espnet3.parallel.process_pool import fork_spares

spares = fork_spares(2)
BODY
"""
CHILD = """
import json, os, sys

def main():
    state = {
        "parent": os.getppid(), "pid": os.getpid(), "session": os.getsid(0), "cwd": os.getcwd(),
        "argv": sys.argv, "main": sorted(vars(sys.modules["__main__"])), "path": sys.path,
        "stdin": os.path.realpath("/proc/self/fd/0"), "environment": dict(os.environ),
        "name": open("/proc/self/comm").read().strip(),
        "files": sorted(set(os.listdir("/proc/self/fd")) - {"0", "1", "2"}),
    }
    print(json.dumps(state))
    DEED
"""


@pytest.fixture
def run(tmp_path):
    """Run a program that has two spares, with a module `child_program` that they may become."""

    def run(body, deed="", top=""):
        (tmp_path / "child_program.py").write_text(CHILD.replace("DEED", deed))
        program = PROGRAM.replace("TOP", top).replace("BODY", body)
        return subprocess.Popen(
            [sys.executable, "-c", program], cwd=tmp_path, text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return run


def end(process) -> str:
    out, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    return out


BECOME = """
os.mkdir("elsewhere"); os.chdir("elsewhere")
sys.path.append("/added")
ours, theirs = socket.socketpair()
own = {"environment": {"ONLY": "this"}, "path": PATH}
child = spares[0].become("child_program", ["a", "b"], link=theirs, **own)
code = child.wait(60)
print(json.dumps([os.getpid(), child.pid]))
print(code, child.poll())
spares[0].close()  # which has become something, and is none of its concern
"""
BECOME_WITH_PATH, BECOME = BECOME.replace("PATH", "sys.path"), BECOME.replace("PATH", "None")


def test_a_spare_becomes_what_a_new_process_would_be(run, tmp_path):
    out = end(run(BECOME_WITH_PATH)).splitlines()
    state, (parent, pid) = (json.loads(line) for line in out[:2])
    assert (state["parent"], state["pid"], state["session"]) == (parent, pid, pid)
    assert state["cwd"] == str(tmp_path / "elsewhere")
    assert state["argv"][2:] == ["a", "b"]
    assert state["main"] == ["__doc__", "__loader__", "__name__", "__package__", "__spec__"]
    assert state["path"][-1] == "/added"
    assert state["stdin"] == "/dev/null"
    assert state["environment"] == {"ONLY": "this"}
    assert state["name"] == "espnet3-child_p"
    # That of the link, and the folder that is just being listed.
    assert len(state["files"]) == 2
    assert state["argv"][1] in state["files"]
    assert out[2] == "0 0"


def test_without_a_path_it_does_not_see_what_was_added_for_the_user_s_code(run):
    state = json.loads(end(run(BECOME)).splitlines()[0])
    assert "/added" not in state["path"]


@pytest.mark.parametrize(
    ("deed", "code"),
    [
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), 9)", -9),
        ("raise OSError('what it is')", 1),
        ("return 5", 5),
    ],
)
def test_how_it_ends_is_known(run, deed, code):
    process = run(BECOME, deed)
    out, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert out.splitlines()[-1] == f"{code} {code}"
    assert ("OSError: what it is" in told) == (code == 1)


def test_its_output_is_in_the_log_when_it_is_killed(run, tmp_path):
    log = tmp_path / "its.log"
    end(run(
        f"spares[0].become('child_program', [], environment={{}}, log={str(log)!r}).wait(60)",
        "sys.stdout.write('no end of line'); os.kill(os.getpid(), 9)",
    ))  # fmt: skip
    assert log.read_text().endswith("no end of line")


def test_signals_to_all_processes_of_a_job_do_not_end_one_that_waits(run):
    listen = "[signal.signal(each, signal.SIG_IGN) for each in (15, 10, 12, 2, 1)]; "
    signals = "[os.kill(s._child.pid, each) for s in spares for each in (15, 10, 12, 2, 1)]; "
    ready = "[s._link.recv(1, socket.MSG_PEEK) for s in spares]; "
    begin = "child = spares[1].become('child_program', [], environment={}); "
    out = end(run(f"{ready}{listen}{signals}time.sleep(0.1); {begin}print(child.wait(60))"))
    assert out.splitlines()[-1] == "0"


def test_once_it_is_something_a_signal_ends_it_as_any_process(run):
    out = end(run(BECOME, "os.kill(os.getpid(), 15)"))
    assert out.splitlines()[-1] == "-15 -15"


@pytest.mark.parametrize("how", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_spares_end_with_their_process_however_it_ends(run, how):
    process = run(f"print(*[s._child.pid for s in spares], flush=True); {how}")
    out, _ = process.communicate(timeout=60)
    pids = [int(word) for word in out.split()]
    assert len(pids) == 2
    wait_for_end(pids, 60)


def test_spares_that_are_not_needed_are_gone_after_close(run):
    body = "print(*[s._child.pid for s in spares], flush=True); [s.close() for s in spares]"
    process = run(f"{body}; input()")
    process.stdin = None
    pids = [int(word) for word in process.stdout.readline().split()]
    wait_for_end(pids, 60)
    process.communicate(timeout=60)


def test_a_spare_that_was_killed_becomes_nothing(run):
    kill = "os.kill(spares[0]._child.pid, 9); spares[0]._child.wait(60); "
    out = end(run(f"{kill}print(spares[0].become('child_program', [], environment={{}}))"))
    assert out == "None\n"


def test_an_environment_too_large_for_a_message_needs_the_plain_start(run):
    big = "{str(i): 'x' * 100_000 for i in range(20)}"
    out = end(run(f"print(spares[0].become('child_program', [], environment={big}))"))
    assert out == "None\n"


@pytest.mark.parametrize(
    "top",
    [
        "import threading; threading.Thread(target=time.sleep, args=(5,), daemon=True).start()",
        "import numpy",
    ],
)
def test_what_a_site_loads_into_each_python_may_forbid_spares(run, top):
    assert end(run("print(spares)", top=top)) == "[]\n"


# --- In a detached worker.

RUN = """
import os, sys, time
from pathlib import Path
from espnet3.parallel import BaseRunner, set_parallel

class Provider:
    def build_env_local(self):
        return {}
    def build_worker_setup_fn(self):
        return dict

class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        BODY

if __name__ == "__main__":
    set_parallel({"env": "local", "n_workers": 1, "mode": "async"})
    run = Runner(Provider(), output_dir="out")(range(6))
    try:
        run.wait(120)
    finally:
        run.cancel()
"""


def run_detached(folder: Path, body: str) -> tuple[list, str]:
    (folder / "run.py").write_text(RUN.replace("BODY", body))
    told = subprocess.run(
        [sys.executable, "run.py"], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    lines = (folder / "out/results.jsonl").read_text().splitlines()
    (log,) = (folder / "out/logs").glob("detached-*.log")
    return [json.loads(line) for line in lines], log.read_text()


SPARE, PLAIN = "The worker starts from a spare process", "Workers start plainly: 1 worker"


def test_the_child_of_a_detached_worker_is_a_spare(tmp_path):
    body = "return [idx, os.getpid(), open('/proc/self/comm').read().strip(), len(sys.argv)]"
    results, log = run_detached(tmp_path, body)
    assert [result[0] for result in results] == list(range(6))
    assert {result[2] for result in results} == {"espnet3-worker"}
    assert SPARE in log
    assert PLAIN not in log
    assert not any(is_alive(pid) for _, pid, *_ in results)


@pytest.mark.parametrize("death", ["os.kill(os.getpid(), 9)", "os._exit(7)", "os.abort()"])
def test_a_child_that_crashes_is_replaced_by_one_that_starts_plainly(tmp_path, death):
    body = f"if idx == 3 and not os.path.exists('once'): Path('once').touch(); {death}\n"
    body += "        return [idx, open('/proc/self/comm').read().strip()]"
    results, log = run_detached(tmp_path, body)
    assert [result[0] for result in results] == list(range(6))
    assert results[-1][1] != "espnet3-worker"
    assert SPARE in log
    why = {"os._exit(7)": "code 7", "os.abort()": "SIGABRT"}.get(death, "SIGKILL")
    assert why in log


def test_a_module_of_the_user_s_may_start_threads_at_import(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
    )
    results, log = run_detached(tmp_path, "import mine; return idx")
    assert results == list(range(6))
    assert SPARE in log


def test_nothing_of_the_user_s_is_loaded_before_the_fork_so_that_no_cuda_is_inherited(tmp_path):
    body = "return [name for name in ('torch', 'numpy', 'run') if name in sys.modules]"
    results, _ = run_detached(tmp_path, body)
    assert results == [[]] * 6


def test_processes_of_a_killed_worker_are_gone(tmp_path):
    (tmp_path / "run.py").write_text(RUN.replace("BODY", "time.sleep(600)"))
    driver = subprocess.Popen(
        [sys.executable, "run.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        out = tmp_path / "out"
        wait_until(lambda: list(out.glob("split.*.part-*/.position")), 60)
        os.killpg(driver.pid, signal.SIGKILL)
        (worker,) = read_workers(RecordPaths(out))
        children = _children_of(worker.pid)
        assert len(children) == 2, "its child, and one that waits to submit a successor"
        os.kill(worker.pid, signal.SIGKILL)
        wait_for_end(children, 60)
    finally:
        driver.wait(60)


def _children_of(parent: int) -> list[int]:
    time.sleep(0.1)
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(folder.name))
    return found
