"""The program behind the golden run folders: `python golden_job.py OUT sync|async`.

Item 9 fails and is skipped. With GOLDEN_DIES_AT the worker is killed at that item, together with
the process that started it, as when a node goes down.
"""

import os
import signal
import sys

from espnet3.parallel import BaseRunner, set_parallel

N_ITEMS = 12


class Provider:
    """Build nothing."""

    def build_env_local(self):
        return {}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Runner(BaseRunner):
    """Name each item."""

    @staticmethod
    def forward(idx):
        if str(idx) == os.environ.get("GOLDEN_DIES_AT"):
            if os.environ.get("GOLDEN_DIES_WITH") == "parent":
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if idx == 9:
            raise ValueError("this item is bad")
        return f"utt{idx}"


def main(out, mode):
    set_parallel({"env": "local", "n_workers": 1, "shards_per_worker": 6, "mode": mode})
    print(Runner(Provider(), output_dir=out, on_error="skip")(range(N_ITEMS)))


if __name__ == "__main__":
    from golden_job import main as run  # by its name, so that workers can import it

    run(*sys.argv[1:])
