"""What goes wrong before any item is done, on real schedulers: told soon, and no job stays."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
_PATIENCE = 120.0  # seconds; other programs share the machine

# A program whose provider needs a package that is on the driver's machine only.
PROGRAM = """
import json, sys
from pathlib import Path
from espnet3.parallel import BaseRunner, set_parallel
from recipe import Provider

class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        return {"idx": idx}

if __name__ == "__main__":
    set_parallel(json.loads(sys.argv[1]))
    Runner(Provider(), output_dir=Path(__file__).parent / "out")(range(20))
"""
RECIPE = """
import os
if {broken} and ("SLURM_JOB_ID" in os.environ or "JOB_ID" in os.environ):
    import package_of_the_head  # "installed" on the driver's machine only

class Provider:
    def build_env_local(self):
        return {{}}

    def build_worker_setup_fn(self):
        return self.build_env_local
"""


@pytest.fixture(params=["slurm", "sge"])
def clients(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def start(tmp_path):
    """Return a function that starts the program on a scheduler, as a user would."""
    folder = tmp_path / "it's a recipe"
    folder.mkdir()
    (folder / "run.py").write_text(PROGRAM)

    def run(clients, *, broken=False, start_timeout=600, n_workers=2, **options):
        (folder / "recipe.py").write_text(RECIPE.format(broken=broken))
        block = {**clients.parallel(n_workers, **options), "start_timeout": start_timeout}
        return clients.start(sys.executable, folder / "run.py", json.dumps(block), cwd=tmp_path)

    return run


def assert_fails(driver, clients, *words: str) -> str:
    """Wait for the end; what is told last must have all the words."""
    _, told = driver.communicate(timeout=_PATIENCE)
    assert driver.returncode == 1, told
    error = told[told.rindex("espnet3.errors.") :]
    for word in words:
        assert word in error, told
    assert_nothing_is_left(clients)
    return told


def assert_nothing_is_left(clients):
    assert clients.left_behind() == {}  # at once: nobody may have to wait for it
    assert not list(clients.folder.rglob(".espnet3-tls*"))


def test_a_queue_that_does_not_exist(clients, start):
    words = {
        "slurm": ["sbatch refused a job", "invalid partition specified: weekend", "-p weekend"],
        "sge": ["qsub refused a job", 'unknown queue "weekend"', "-q weekend"],
    }
    driver = start(clients, queue="weekend")
    assert_fails(driver, clients, "queue: NAME", *words[clients.env_name])
    assert clients.submitted() == {} or clients.env_name == "slurm"


def test_more_gpus_than_a_node_has(slurm, start):
    driver = start(slurm, job_extra_directives=["--gres=gpu:3"])
    assert_fails(driver, slurm, "node configuration is not available", "#SBATCH --gres=gpu:3")


def test_jobs_that_never_start(clients, start):
    held = {"slurm": "--hold", "sge": "-h"}[clients.env_name]
    driver = start(clients, job_extra_directives=[held], start_timeout=12)
    told = assert_fails(driver, clients, "parallel.start_timeout", "2 of 2 jobs are pending")
    assert {"slurm": "JobHeldUser", "sge": "Job is in hold state"}[clients.env_name] in told


def test_a_worker_that_cannot_import_the_recipe(clients, start):
    driver = start(clients, broken=True)
    words = ["No module named 'package_of_the_head'", "on node"]
    assert_fails(driver, clients, *words)


def test_an_interpreter_that_nodes_do_not_have(slurm, start):
    driver = start(slurm, python="/opt/missing/bin/python", n_workers=3)
    told = assert_fails(driver, slurm, "ended before they got anything done", "The end of")
    assert "/opt/missing/bin/python" in told[told.rindex("The end of") :]


@pytest.fixture
def tiny_folder(tmp_path):
    """Return a folder with room for 32 kB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this container may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_quota_for_the_logs(slurm, start, tiny_folder):
    driver = start(slurm, log_directory=str(tiny_folder))
    assert_fails(driver, slurm, f"log_directory is {tiny_folder}", "No space left on device",
                 "Nothing was submitted")  # fmt: skip
    assert slurm.submitted() == {}


def test_ctrl_c_while_jobs_wait(clients, start):
    held = {"slurm": "--hold", "sge": "-h"}[clients.env_name]
    driver = start(clients, job_extra_directives=[held])
    wait_until(lambda: len(clients.active()) == 2 or driver.poll() is not None, _PATIENCE)
    assert driver.poll() is None, driver.stderr.read()
    os.killpg(driver.pid, signal.SIGINT)
    _, told = driver.communicate(timeout=_PATIENCE)
    assert driver.returncode == 130, told
    assert "Traceback" not in told
    assert_nothing_is_left(clients)
