"""Local workers are forked from one warm process, or start plainly where that is not safe."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.parallel import BaseRunner, use_parallel
from tests.helpers.exhaustive import few
from tests.helpers.providers import Provider
from tests.helpers.waiting import is_alive, wait_for_end, wait_until, warm_pids, worker_pids

pytestmark = pytest.mark.cold
FORKED = "Workers are forked from one process, warm in "
PLAIN = "Workers start plainly, each with its own imports: "
GONE = "The process from which workers are forked is gone: it was ended by SIGKILL"
ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, os, mine
from espnet3.parallel import set_parallel

assert not os.path.exists("started"), "a script without a guard was run again"
open("started", "w").close()
set_parallel({"env": "local", "n_workers": N_WORKERS})
print(json.dumps(mine.Runner(mine.Provider())(range(40))))
"""
MODULE = """
import os, pathlib, sys, time
from espnet3.parallel import BaseRunner

with open("imports", "a") as file:
    file.write(f"{os.getpid()}\\n")
TOP
class Provider:
    def build_env_local(self):
        return {}
    def build_worker_setup_fn(self):
        return dict

class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        time.sleep(0.01)
        BODY
"""


class Script:
    """A script and its module, in a folder of their own."""

    def __init__(self, folder: Path, body: str, top: str = "", n_workers: int = 2) -> None:
        self.folder = folder
        (folder / "run.py").write_text(SCRIPT.replace("N_WORKERS", str(n_workers)))
        (folder / "mine.py").write_text(MODULE.replace("TOP", top).replace("BODY", body))

    def start(self) -> "subprocess.Popen[str]":
        (self.folder / "started").unlink(missing_ok=True)
        return subprocess.Popen(
            [sys.executable, "run.py"], cwd=self.folder, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self):
        return self.end(self.start())

    def end(self, process):
        out, told = process.communicate(timeout=120)
        assert process.returncode == 0, told
        return json.loads(out), told

    def imported_by(self):
        return [int(line) for line in (self.folder / "imports").read_text().split()]


@pytest.fixture
def script(tmp_path):
    return lambda *args, **options: Script(tmp_path, *args, **options)


STATE = (
    "return [os.getppid(), os.getpid(), os.getsid(0), os.environ['LOCAL_RANK'], os.getcwd(), "
    "sys.argv[0], sorted(sys.modules['__main__'].__dict__)[-1:], os.environ['OMP_NUM_THREADS'], "
    "os.path.realpath('/proc/self/fd/0'), sys.path]"
)
WITH_THREAD = (
    "import threading; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()"
)


def test_workers_are_forked_from_one_process_that_has_imported_the_users_modules(script):
    run = script(STATE, n_workers=4)
    results, told = run.run()
    assert FORKED in told
    assert PLAIN not in told
    parents = {state[0] for state in results}
    assert len(parents) == 1
    # Once by the script and once for all workers, however many there are.
    assert len(run.imported_by()) == 2
    assert parents < set(run.imported_by())
    assert not any(is_alive(pid) for pid in [*parents, *(state[1] for state in results)])


def test_a_forked_worker_is_like_one_that_started_plainly(script):
    forked, told = script(STATE, n_workers=3).run()
    plain, told_plainly = script(STATE, WITH_THREAD, n_workers=3).run()
    assert FORKED in told
    assert f"{PLAIN}a thread is started by a module when it is imported" in told_plainly
    for states in (forked, plain):
        assert all(pid == session for _, pid, session, *_ in states)  # killpg reaches it alone
    same = [{json.dumps(state[4:]) for state in states} for states in (forked, plain)]
    assert same[0] == same[1]
    ranks = [{state[3] for state in states} for states in (forked, plain)]
    assert ranks[0] == ranks[1] == {"0", "1", "2"}


RANDOM = [
    ("import numpy; NOISE = numpy.random.default_rng()", "Generator is used by a module"),
    ("import numpy; numpy.random.seed(1)", "numpy.random is used by a module"),
    ("import random; random.seed(1)", "random is used by a module"),
    ("import random; NOISE = [random.Random()]", "random.Random is used by a module"),
]


@pytest.mark.parametrize(
    ("top", "reason"),
    [
        (WITH_THREAD, "a thread is started by a module"),
        ("import subprocess; KEPT = subprocess.Popen(['sleep', '2'])", "a process is started by"),
        ("RANK = os.environ.get('LOCAL_RANK')", "LOCAL_RANK is read when a module is imported"),
        ("LOCK = open('lock', 'w')", "lock is kept open by a module"),
        ("if 'run.py' not in sys.argv[0]: raise OSError", "loading the run raised OSError"),
        *few(RANDOM, 1),
    ],
)
def test_what_a_fork_would_share_or_lose_makes_workers_start_plainly(script, top, reason):
    run = script("return getattr(sys.modules[__name__], 'RANK', None) or idx", top)
    if "OSError" in top:
        _, told = run.start().communicate(timeout=120)
        assert "OSError" in told.partition(PLAIN)[2]
    else:
        results, told = run.run()
        assert ("RANK" not in top and results == list(range(40))) or set(results) <= {"0", "1"}
    assert PLAIN in told
    assert reason in told
    assert FORKED not in told


def test_torch_is_imported_once_and_cuda_is_never_inherited(script):
    run = script("return [os.getppid(), 'torch' in sys.modules]", "import torch")
    without, told = run.run()
    assert FORKED in told
    assert {tuple(state) for state in without} == {(without[0][0], True)}
    # No test has a GPU; and a torch of two lines is imported five times sooner than the real one.
    (run.folder / "torch.py").write_text(
        "import types\ncuda = types.SimpleNamespace(is_initialized=lambda: True)\n"
    )
    results, told = script("return idx", "import torch").run()
    assert f"{PLAIN}CUDA is used by a module when it is imported" in told
    assert results == list(range(40))


def test_random_numbers_differ_between_forked_workers(script):
    body = "import random, numpy; return [os.getpid(), random.random(), numpy.random.rand()]"
    results, told = script(body, "import random, numpy.random", n_workers=4).run()
    assert FORKED in told
    n_workers = len({pid for pid, *_ in results})
    assert n_workers > 1
    assert len({number for _, number, _ in results}) == len(results)
    assert len({number for *_, number in results}) == len(results)


ONCE = "pathlib.Path('died').exists() or pathlib.Path('died').touch() or "


@pytest.mark.parametrize(
    ("end", "reason"),
    few(
        [
            ("os.kill(os.getpid(), 9)", "it was ended by SIGKILL (which is what the kernel sends"),
            ("os.kill(os.getpid(), 11)", "it was ended by SIGSEGV"),
            ("os._exit(3)", "it exited with code 3"),
        ],
        1,
    ),
)
def test_a_forked_worker_that_dies_is_replaced_by_another_fork(script, end, reason):
    run = script(f"{ONCE}{end}; return [idx, os.getppid()]")
    results, told = run.run()
    assert [idx for idx, _ in results] == list(range(40))
    assert f"died: {reason}" in told
    assert len(run.imported_by()) == 2  # also for the one that replaced it
    assert len({parent for _, parent in results}) == 1


def test_the_warm_process_dies_while_it_imports(script):
    # Not in the script, which has it as its parent does.
    top = "if 'run.py' not in sys.argv[0] and not os.path.exists('go'): time.sleep(999)"
    run = script("return idx", top)
    process = run.start()
    wait_until(lambda: warm_pids(process.pid))
    wait_until(lambda: len(run.imported_by()) == 2)
    (run.folder / "go").touch()
    os.kill(warm_pids(process.pid)[0], signal.SIGKILL)
    results, told = run.end(process)
    assert results == list(range(40))
    assert f"{GONE} " in told
    assert "Workers start plainly from now on" in told


def test_the_warm_process_dies_while_workers_run_which_continue(script):
    run = script(
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        f"        (idx == 39 and ({ONCE}os._exit(3)))\n        return [idx, os.getpid()]"
    )
    process = run.start()
    wait_until(lambda: len(worker_pids(process.pid)) == 2)
    workers = worker_pids(process.pid)
    os.kill(warm_pids(process.pid)[0], signal.SIGKILL)
    wait_until(lambda: not warm_pids(process.pid))
    (run.folder / "go").touch()
    results, told = run.end(process)
    assert [idx for idx, _ in results] == list(range(40))
    assert GONE in told
    assert "died: it ended when the process was gone from which it was forked" in told
    pids = {pid for _, pid in results}
    assert len(pids & set(workers)) == 2  # those that ran went on
    assert len(pids - set(workers)) <= 1  # and one was started plainly for the one that died
    assert not any(is_alive(pid) for pid in {*pids, *workers})


def test_a_warm_process_that_does_not_answer_is_done_without(script):
    held = "[time.sleep(0.01) for _ in iter(lambda: os.path.exists('go'), True)]"
    run = script(f"{ONCE}({held}, os._exit(3)); return idx")
    text = (run.folder / "run.py").read_text()
    shorter = "from espnet3.parallel import process_pool; process_pool._ANSWER_SECONDS = 2.0"
    (run.folder / "run.py").write_text(f"{shorter}\n{text}")
    process = run.start()
    wait_until(lambda: len(worker_pids(process.pid)) == 2)
    (warm,) = warm_pids(process.pid)
    os.kill(warm, signal.SIGSTOP)
    (run.folder / "go").touch()
    results, told = run.end(process)
    assert results == list(range(40))
    assert "workers are forked does not answer. Workers start plainly from now on" in told
    assert not is_alive(warm)


@pytest.mark.parametrize("moment", ["import", "work"])
def test_all_end_with_a_driver_that_is_killed(script, moment):
    top = "if 'run.py' not in sys.argv[0]: time.sleep(999)" if moment == "import" else ""
    run = script("time.sleep(999)", top, n_workers=3)
    process = run.start()
    n_workers = 0 if moment == "import" else 3
    wait_until(lambda: warm_pids(process.pid) and len(run.imported_by()) == 2)
    wait_until(lambda: len(worker_pids(process.pid)) == n_workers)
    everyone = [*warm_pids(process.pid), *worker_pids(process.pid)]
    process.kill()
    process.communicate()
    wait_for_end(everyone)


class TellGpu(BaseRunner):
    @staticmethod
    def forward(idx):
        names = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK")
        return [os.getppid(), *(os.environ[name] for name in names)]


def test_each_forked_gpu_worker_has_its_own_gpu_first(monkeypatch, caplog):
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: ["4", "5"])
    parallel = {"env": "local_gpu", "n_workers": 2}
    with caplog.at_level("INFO"), use_parallel(parallel):
        results = TellGpu(Provider())(range(40))
    assert FORKED in caplog.text
    assert {state[1] for state in results} == {"4,5", "5,4"}
    assert {state[2] for state in results} == {"0"}
    assert os.getpid() not in {state[0] for state in results}
