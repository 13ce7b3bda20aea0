"""`python -m espnet3.cli` is `espnet3`."""

import sys

from espnet3.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
