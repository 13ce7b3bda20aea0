"""The job script of each scheduler, from the block that its page in docs/clusters shows first.

They are reviewed as code. After a change on purpose: ESPNET3_UPDATE_GOLDEN=1 python -m pytest on
this file, and look at `git diff`.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from espnet3.parallel.clusters.table import BACKENDS, render_job_script
from espnet3.parallel.parallel import as_parallel_config

ROOT = Path(__file__).parents[4]
GOLDEN = Path(__file__).parent / "golden"
JOB_BACKENDS = [env for env, backend in BACKENDS.items() if backend.module == "jobqueue"]


def render(env: str) -> str:
    page = (ROOT / "docs" / "clusters" / f"{env}.md").read_text()
    block = re.search(r"```yaml\n(.*?)```", page, re.DOTALL).group(1)
    script = render_job_script(as_parallel_config(OmegaConf.create(block).parallel))
    return _without_this_machine(script)


def _without_this_machine(script: str) -> str:
    """Replace what differs from machine to machine and from run to run."""
    script = script.replace(sys.executable, "{python}")
    script = re.sub(r"(tcp|tls)://[^\s\"']+:\d+", r"\1://{host}:{port}", script)
    script = re.sub(r"(PYTHONPATH=\S*:})[^\s;]+", r"\1{clone}", script)
    return script.replace(str(Path.cwd()), "{folder}")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    folder = tmp_path / "recipe"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    # Other tests of this session leave folders of recipes there.
    monkeypatch.setattr(sys, "path", [e for e in sys.path if e.startswith((sys.prefix, str(ROOT)))])


@pytest.mark.parametrize("env", JOB_BACKENDS)
def test_the_job_script_is_the_reviewed_one(env):
    script = render(env)
    golden = GOLDEN / f"{env}.sh"
    if os.environ.get("ESPNET3_UPDATE_GOLDEN") == "1":
        golden.write_text(script)
    assert script == golden.read_text()


def test_there_is_a_script_for_each_scheduler_and_no_other():
    assert sorted(path.stem for path in GOLDEN.glob("*.sh")) == sorted(JOB_BACKENDS)
