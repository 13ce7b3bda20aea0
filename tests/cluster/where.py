"""A user's program that notes where and when its items ran: `python where.py BLOCK.yaml HOW`.

HOW is `runner`, or `map` for the way of seed 001. In the folder `trace`, each job has a file with
a line per item. Items from N_EARLY on wait until all jobs have come.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

from dask.distributed import WorkerPlugin, get_worker
from omegaconf import OmegaConf

from espnet3.parallel import BaseRunner, get_client, parallel_map, set_parallel

N_ITEMS = 400
N_EARLY = 100
PATIENCE = 120.0
TRACE = Path("trace").absolute()


def note(idx, trace, n_jobs):
    """Compute an item, and tell about it."""
    # HTCondor does not tell a job its name.
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("JOB_ID") or os.getpid()
    file = trace / str(job)
    file.touch()
    begin, deadline = time.time(), time.monotonic() + PATIENCE
    while idx >= N_EARLY and len(os.listdir(trace)) < n_jobs:
        assert time.monotonic() < deadline, "not all jobs came"
        time.sleep(0.01)
    time.sleep(0.02)
    told = {
        "idx": idx,
        "begin": begin,
        "end": time.time(),
        "place": [socket.gethostname(), os.environ.get("CUDA_VISIBLE_DEVICES")],
        "pid": os.getpid(),
        "word": os.environ.get("SEED_WORD"),
    }
    with file.open("a") as lines:
        lines.write(json.dumps(told) + "\n")
    return {"idx": idx}


class Provider:
    def __init__(self, n_jobs):
        self.n_jobs = n_jobs

    def build_env_local(self):
        return {"trace": TRACE, "n_jobs": self.n_jobs}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Runner(BaseRunner):
    @staticmethod
    def forward(idx, trace, n_jobs):
        return note(idx, trace, n_jobs)


class LargeInstancePlugin(WorkerPlugin):
    """As in seed 001."""

    def __init__(self, n_jobs):
        self.n_jobs = n_jobs

    def setup(self, worker):
        worker.model = lambda idx: note(idx, TRACE, self.n_jobs)


def inference(idx):
    return get_worker().model(idx)


def main():
    (config,) = OmegaConf.load(sys.argv[1]).values()
    set_parallel(config)
    TRACE.mkdir()
    if sys.argv[2] == "map":
        with get_client(LargeInstancePlugin(config.n_workers)):
            results = parallel_map(inference, list(range(N_ITEMS)))
    else:
        Runner(Provider(config.n_workers), output_dir="out")(range(N_ITEMS))
        lines = Path("out/results.jsonl").read_text().splitlines()
        results = [json.loads(line) for line in lines]
    assert [result["idx"] for result in results] == list(range(N_ITEMS))


if __name__ == "__main__":
    main()
