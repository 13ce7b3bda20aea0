"""A Ray cluster of two nodes on this machine, in a process of its own: Ray's own test cluster.

As a program: starts it, says where on stdout, and obeys the words on stdin until that is closed.
"""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

_SIZE = {"object_store_memory": 80 << 20}
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def variables(**more: str) -> dict[str, str]:
    """Return the environment of a cluster and of what talks to it: all of it on loopback."""
    own = {_LOOPBACK: "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
    return {**os.environ, **own, "RAY_AUTH_TOKEN": secrets.token_hex(16), **more}


class RayNodes:
    """The cluster as tests see it."""

    def __init__(self, folder: Path) -> None:
        # Ray leaves a note there, in a folder that it makes itself only if it is the usual one.
        (folder / "ray").mkdir()
        self.env = variables(RAY_TMPDIR=str(folder))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.ray_cluster", str(folder)],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "cluster.log").open("wb"),
            text=True,
        )
        self.address = self._answer()

    def say(self, word: str) -> str:
        """Let the cluster `kill` its second node at once, or `add` one again."""
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _answer(self) -> str:
        return json.loads(self._process.stdout.readline())


def main() -> None:
    from ray.cluster_utils import Cluster

    # Its sockets are in it, whose paths may have 107 characters.
    folder = Path(sys.argv[1])
    head = {"num_cpus": 2, "include_dashboard": False, "temp_dir": str(folder), **_SIZE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=2, num_gpus=1, **_SIZE)
    print(json.dumps(cluster.address), flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(second, allow_graceful=False)
        else:
            second = cluster.add_node(num_cpus=2, num_gpus=1, **_SIZE)
        print(json.dumps(line.strip()), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
