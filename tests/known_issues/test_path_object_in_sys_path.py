"""Workers did not start when `sys.path` held a Path, as it does in many notebooks."""

import sys
from pathlib import Path

from espnet3.parallel import parallel_map, use_parallel


def test_workers_start(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/tmp")])
    with use_parallel({"n_workers": 2}):
        assert parallel_map(str.upper, ["a", "b"]) == ["A", "B"]
