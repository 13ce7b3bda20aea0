"""The former name of `successor_main`: workers that run while the package is updated start it."""

from espnet3.parallel.detached.successor_main import main

if __name__ == "__main__":
    raise SystemExit(main())
