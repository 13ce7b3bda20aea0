"""Run as a program: 20 items on `env: kube`; arguments are the `parallel` block and a folder."""

import json
import os
import sys

from espnet3.errors import EspnetError
from espnet3.parallel import BaseRunner, set_parallel
from tests.helpers.providers import Provider


class Where(BaseRunner):
    @staticmethod
    def forward(idx):
        return {
            "idx": idx,
            "pod": os.environ["POD"],
            "color": os.environ.get("COLOR"),
            "folder": os.getcwd(),
        }


def main() -> None:
    set_parallel(json.loads(sys.argv[1]))
    try:
        path = Where(Provider(), output_dir=sys.argv[2])(range(20))
    except EspnetError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(path.read_text())


if __name__ == "__main__":
    main()
