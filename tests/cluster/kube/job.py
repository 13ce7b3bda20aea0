"""Run as a program: 20 items on `env: kube`.

Arguments are the `parallel` block, a folder, the seconds that an item takes, and those that closing
may take.
"""

import json
import os
import sys
import time

from espnet3.errors import EspnetError
from espnet3.parallel import BaseRunner, open_pool, set_parallel
from tests.helpers.providers import Provider


class Where(BaseRunner):
    @staticmethod
    def forward(idx, seconds):
        time.sleep(seconds)
        return {
            "idx": idx,
            "pod": os.environ["POD"],
            "color": os.environ.get("COLOR"),
            "folder": os.getcwd(),
        }


def main() -> None:
    block, folder, seconds, close_seconds = sys.argv[1:]
    set_parallel(json.loads(block))
    open_pool.CLOSE_SECONDS = float(close_seconds)
    try:
        path = Where(Provider(seconds=float(seconds)), output_dir=folder)(range(20))
    except EspnetError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(path.read_text())


if __name__ == "__main__":
    main()
