"""What the golden job scripts of all kinds share: blocks of the pages, and what is left out."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from espnet3.parallel.clusters.registry import BACKENDS
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.parallel import as_parallel_config

ROOT = Path(__file__).parents[2]
JOB_BACKENDS = [env for env, backend in BACKENDS.items() if backend.module == "jobqueue"]


def config_of(env: str, **changes: Any) -> ParallelConfig:
    """Return the block that the page of a scheduler shows first."""
    page = (ROOT / "docs" / "clusters" / f"{env}.md").read_text()
    block = re.search(r"```yaml\n(.*?)```", page, re.DOTALL).group(1)
    return as_parallel_config({**OmegaConf.create(block).parallel, **changes})


def compare(script: str, golden: Path) -> None:
    """Compare a script with the reviewed one, or write it: see the tests' own words."""
    script = _without_this_machine(script)
    if os.environ.get("ESPNET3_UPDATE_GOLDEN") == "1":
        golden.write_text(script)
    assert script == golden.read_text()


def _without_this_machine(script: str) -> str:
    """Replace what differs from machine to machine and from run to run."""
    script = script.replace(sys.executable, "{python}")
    script = re.sub(r"(tcp|tls)://[^\s\"']+:\d+", r"\1://{host}:{port}", script)
    script = re.sub(r"(PYTHONPATH=\S*:})[^\s;]+", r"\1{clone}", script)
    return script.replace(str(Path.cwd()), "{folder}")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Render in a folder of its own, without settings of this machine."""
    folder = tmp_path / "recipe"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    # Other tests of this session leave folders of recipes there.
    kept = (sys.prefix, sys.base_prefix, str(ROOT))
    monkeypatch.setattr(sys, "path", [e for e in sys.path if e.startswith(kept)])
