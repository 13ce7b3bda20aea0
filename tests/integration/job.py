"""A job like a user's, with faults built in: `python job.py OUT '{"n_workers": 2, ...}'`.

Each fault is a real signal, sent at a certain step of the protocol, and only once: a file in
`OUT.faults` remembers that it has happened.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from espnet3.parallel import BaseRunner, set_parallel
from espnet3.shards import layout
from espnet3.shards.merge import concat_files

DEFAULTS = {
    "n_workers": 2,
    "n_items": 60,
    "batch_size": None,
    "fault": "",
    "seconds": 0.002,
    "hurry": "",
    "last": "",
    "lock_seconds": 0,
    "trace": "",
    "prints": False,
    "scratch": "",
    "hangs_on": "",
    "dies_on": "",
    "on_error": "raise",
    "max_errors": None,
    "resume": True,
    "bad": [],
    "how": "raise",
    "parallel": {},
    "beam": 1,
    "line": 40,
    "group_size": None,
}


def die(number=signal.SIGKILL, pid=None):
    os.kill(pid or os.getpid(), number)
    time.sleep(30)


def once(out, name):
    """Return True the first time."""
    folder = Path(f"{out}.faults")
    folder.mkdir(exist_ok=True)
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Provider:
    """What the results depend on is in `config`; the rest is only how they come about."""

    fingerprint_ignore = ("faults",)

    def __init__(self, config, faults):
        self.config = config
        self.faults = {**faults, "driver": os.getpid()}

    def build_env_local(self):
        inject_worker_fault(self.faults)
        return {"config": self.config, "faults": self.faults}

    def build_worker_setup_fn(self):
        return self.build_env_local


def inject_worker_fault(faults):
    """Kill driver, worker or both when this process is about to publish its third shard."""
    if faults["fault"] not in (
        "driver before rename",
        "worker before rename",
        "both before rename",
    ):
        return
    from espnet3.shards import commit

    rename, count = commit._rename, [0]

    def rename_or_die(attempt, target):
        count[0] += 1
        if count[0] == 3 and once(faults["out"], "rename"):
            if not faults["fault"].startswith("worker"):
                os.kill(faults["driver"], signal.SIGKILL)
            if not faults["fault"].startswith("driver") or faults["driver"] == os.getpid():
                die()
            time.sleep(0.5)
        return rename(attempt, target)

    commit._rename = rename_or_die


class Runner(BaseRunner):
    @staticmethod
    def forward(idx, config, faults):
        items = idx if isinstance(idx, list) else [idx]
        results = [compute(item, config, faults) for item in items]
        return results if isinstance(idx, list) else results[0]

    @staticmethod
    def open_writers(shard_dir):
        return (shard_dir / "text").open("w", encoding="utf-8")

    @staticmethod
    def write_record(writers, result):
        writers.write(result + "\n")

    @staticmethod
    def close_writers(writers):
        writers.close()

    def merge(self, shard_dirs):
        fault, out = self.provider.faults["fault"], self.provider.faults["out"]
        if fault == "driver in merge" and once(out, "merge"):
            half = self.output_dir / "text"
            half.write_text((shard_dirs[0] / "text").read_text())
            die()
        concat_files(shard_dirs, "text", self.output_dir / "text")
        if fault == "driver after merge" and once(out, "merge"):
            die()
        return {"n_shards": len(shard_dirs)}


def compute(item, config, faults):
    print(f"decoding {item}" if faults["prints"] else "", end="\n" * faults["prints"], flush=True)
    suffer_from_node(os.environ.get("SLURMD_NODENAME"), faults)
    # A run that a test wants to disturb lasts until the file says that it has seen enough.
    in_a_hurry = faults["hurry"] and Path(faults["hurry"]).exists()
    time.sleep(0.002 if in_a_hurry else faults["seconds"])
    while item == faults["n_items"] - 1 and faults["last"] and Path(faults["last"]).exists():
        time.sleep(0.1)
    if faults["scratch"]:
        use_disk(faults["scratch"])

    fault, out = faults["fault"], faults["out"]
    if item == 0 and faults["lock_seconds"] and once(out, "lock"):
        ctypes.PyDLL(None).sleep(faults["lock_seconds"])  # with the interpreter lock
    if item == faults["n_items"] // 2:
        if fault in ("driver in attempt", "both in attempt") and once(out, "attempt"):
            os.kill(faults["driver"], signal.SIGKILL)
            if fault == "both in attempt":
                die()
            time.sleep(1)
        if fault == "worker in attempt" and once(out, "attempt"):
            die()
        if fault == "worker stops" and once(out, "attempt"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "item hangs" and once(out, "attempt"):
            time.sleep(1000)
    if item in faults["bad"]:
        fail(faults["how"])
    if faults["trace"]:
        with open(faults["trace"], "a") as file:
            file.write(f"{item}\n")
    return f"utt{item} beam{config['beam']} " + "x" * faults["line"]


def suffer_from_node(node, faults):
    if node and node == faults["dies_on"]:
        os._exit(3)
    if node and node == faults["hangs_on"]:
        time.sleep(1000)


def use_disk(folder):
    """Write what a model might unpack, and remove it."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x" * (1 << 18))


def fail(how):
    if how == "exit":
        os._exit(3)
    if how == "eat":
        eaten = []
        while len(eaten) < 40:  # 2.5 GB, if nobody ends it
            eaten.append(b"x" * (1 << 26))
            time.sleep(0.1)
        time.sleep(1000)
    if how == "kill":
        die()
    if how == "memory":
        import resource

        n_pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = n_pages * resource.getpagesize() + (1 << 29)  # may be forked
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        return bytearray(1 << 31)
    raise ValueError("this item is bad")


def inject_driver_fault(faults):
    """Kill the driver after the plan is written, between two commits, or when all is written."""
    from espnet3.parallel import driver
    from espnet3.parallel.shard_queue import ShardQueue

    fault, out = faults["fault"], faults["out"]
    if fault == "driver after plan" and once(out, "plan"):
        driver.sweep = lambda *args, **kwargs: die()
    if fault == "driver between commits" and once(out, "commits"):
        finished, count = ShardQueue.finished, [0]

        def finished_or_die(self, task):
            finished(self, task)
            count[0] += 1
            if count[0] == 3:
                die()

        ShardQueue.finished = finished_or_die
    if fault == "driver after success" and once(out, "success"):
        merge = driver.Merger.merge
        driver.Merger.merge = lambda self: (merge(self), die())


def main():
    out, settings = sys.argv[1], {**DEFAULTS, **json.loads(sys.argv[2])}
    faults = {"out": out, **settings}
    if settings["group_size"]:
        layout.MAX_FLAT_SHARDS, layout.GROUP_SIZE = 1, settings["group_size"]
    inject_driver_fault(faults)
    set_parallel({"env": "local", "n_workers": settings["n_workers"], **settings["parallel"]})
    runner = Runner(
        Provider({"beam": settings["beam"]}, faults),
        output_dir=out,
        batch_size=settings["batch_size"],
        resume=settings["resume"],
        on_error=settings["on_error"],
        max_errors=settings["max_errors"],
    )
    print(runner(range(settings["n_items"])))


if __name__ == "__main__":
    main()
