"""Run as a program: tell as JSON what each worker of `env: local_gpu` sees.

Arguments: `runner` or `client`, the number of workers, the folder where workers meet, and how
many share a GPU.
"""

import json
import os
import sys
import types
from pathlib import Path

from espnet3.errors import EspnetError
from espnet3.parallel import BaseRunner, get_client, parallel_map, set_parallel
from tests.helpers.providers import Provider
from tests.helpers.waiting import wait_until


def look(meeting: str, n_workers: int) -> dict:
    """Wait for all workers; return what this one sees, and which device its model would get."""
    (Path(meeting) / str(os.getpid())).touch()
    wait_until(lambda: len(os.listdir(meeting)) == n_workers, 120)
    visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    # A torch that finds the stand-in GPUs, which the real one cannot.
    cuda = types.SimpleNamespace(device_count=lambda: len(visible))
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
    from espnet3.systems.base.inference_provider import resolve_device

    own = visible[int(resolve_device({}).removeprefix("cuda:"))]
    return {"pid": os.getpid(), "visible": visible, "own": own}


class Look(BaseRunner):
    @staticmethod
    def forward(idx, meeting, n_workers):
        return look(meeting, n_workers)


def main() -> None:
    way, n_workers, meeting = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    options = {"workers_per_gpu": int(sys.argv[4])} if sys.argv[4] != "1" else {}
    set_parallel({"env": "local_gpu", "n_workers": n_workers, "options": options})
    try:
        if way == "runner":
            found = Look(Provider(meeting=meeting, n_workers=n_workers))(range(20))
        else:
            with get_client() as client:
                found = parallel_map(lambda i: look(meeting, n_workers), range(20))
                assert len(client.nthreads()) == n_workers
    except EspnetError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    workers = {each["pid"]: each for each in found}
    print(json.dumps(sorted(workers.values(), key=lambda each: each["own"])))


if __name__ == "__main__":
    main()
