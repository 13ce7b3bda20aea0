"""The job of a detached worker for each scheduler, from the block that its page shows first.

They are reviewed as code. After a change on purpose: ESPNET3_UPDATE_GOLDEN=1 python -m pytest on
this file, and look at `git diff`.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from espnet3.parallel.clusters.table import BACKENDS
from espnet3.parallel.detached.job_script import WorkerJob, make_job, render_worker_script
from espnet3.parallel.parallel import as_parallel_config

ROOT = Path(__file__).parents[4]
GOLDEN = Path(__file__).parent / "golden"
JOB_BACKENDS = [env for env, backend in BACKENDS.items() if backend.module == "jobqueue"]
RUN = Path("/data/it's a run")


def config_of(env: str, **changes):
    page = (ROOT / "docs" / "clusters" / f"{env}.md").read_text()
    block = re.search(r"```yaml\n(.*?)```", page, re.DOTALL).group(1)
    return as_parallel_config({**OmegaConf.create(block).parallel, "mode": "async", **changes})


def _without_this_machine(script: str) -> str:
    """Replace what differs from machine to machine."""
    script = script.replace(sys.executable, "{python}")
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
    kept = (sys.prefix, sys.base_prefix, str(ROOT))
    monkeypatch.setattr(sys, "path", [e for e in sys.path if e.startswith(kept)])


def check(script: str, golden: Path) -> None:
    script = _without_this_machine(script)
    if os.environ.get("ESPNET3_UPDATE_GOLDEN") == "1":
        golden.write_text(script)
    assert script == golden.read_text()


@pytest.mark.parametrize("env", JOB_BACKENDS)
def test_the_script_of_a_worker_is_the_reviewed_one(env):
    check(render_worker_script(config_of(env), [RUN]), GOLDEN / f"{env}.sh")


@pytest.mark.parametrize("env", JOB_BACKENDS)
def test_the_script_of_a_successor_is_the_reviewed_one(env):
    work = WorkerJob((RUN, RUN / "b"), "12", 3, ("n01", "n02.cluster"), trust="alice")
    job = make_job(config_of(env, max_successors=9), work, 1763300000.0)
    check(job.job_script(), GOLDEN / f"{env}.successor.sh")


def test_there_are_two_scripts_for_each_scheduler_and_no_other():
    expected = [f"{env}{end}" for env in JOB_BACKENDS for end in (".sh", ".successor.sh")]
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(expected)
