"""`espnet3 doctor` on real schedulers: what passes there would run, and no job stays behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.cluster
_PATIENCE = 180.0  # seconds; other programs share the machine
MODEL = "class Model:\n    pass\n"


class Patient:
    """A recipe, and what the doctor says of it."""

    def __init__(self, folder: Path, clients) -> None:
        self.folder = folder
        self.clients = clients
        for name in ("conf", "src"):
            (folder / name).mkdir(parents=True)
        (folder / "run.py").touch()
        (folder / "src/model.py").write_text(MODEL)
        (folder / "conf/training.yaml").write_text("model: {_target_: src.model.Model}\n")
        self.configure()

    def configure(self, **options) -> None:
        """Write the `parallel` block, as JSON is YAML."""
        block = self.clients.parallel(n_workers=2, **options)
        (self.folder / "conf/parallel.yaml").write_text(json.dumps({"parallel": block}))

    def start(self, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "espnet3.cli", "doctor"]
        files = ["conf/training.yaml", "conf/parallel.yaml"]
        return self.clients.start(*command, *files, *words, cwd=self.folder)

    def examine(self, *words: str) -> tuple[int, dict[str, dict[str, str]], str]:
        """Return the exit code, the findings by what they are about, and what stderr told."""
        process = self.start("--json", *words)
        out, told = process.communicate(timeout=_PATIENCE)
        findings = json.loads(out)["findings"]
        return process.returncode, {finding["what"]: finding for finding in findings}, told

    def traces(self) -> list[Path]:
        return list(self.folder.parent.rglob(".espnet3-doctor-*"))


def of_level(findings: dict[str, dict[str, str]], level: str) -> list[str]:
    return [what for what, finding in findings.items() if finding["level"] == level]


@pytest.fixture
def patient(slurm, tmp_path) -> Patient:
    return Patient(tmp_path / "recipe", slurm)


def assert_nothing_is_left(patient: Patient) -> None:
    assert patient.clients.left_behind() == {}
    assert patient.traces() == []


def test_all_is_well_and_a_job_says_so(patient):
    code, findings, told = patient.examine("--submit")
    assert code == 0, findings
    # The GPUs are stand-ins, and the tests' torch is a build for the CPU.
    assert of_level(findings, "warning") == ["job: GPU"], findings
    assert findings["job: GPU"]["told"].startswith("CUDA_VISIBLE_DEVICES=0, but torch")
    assert "ran on node" in findings["job"]["told"]
    assert "reached tls://" in findings["job"]["told"]
    assert "to start at" in findings["scheduler"]["told"]
    assert findings["GPUs"]["told"] == "1 for each job; partition gpu has 8 on 4 nodes"
    assert "OMP_NUM_THREADS=8" in findings["job: machine"]["told"]
    for key in ("exp_dir", "log_directory"):
        assert "seen here after" in findings[f"job: {key}"]["told"]
    assert {"job: Python", "job: recipe", "network", "queue"} <= set(of_level(findings, "ok"))
    assert "has come; it looks around" in told
    assert len(patient.clients.submitted()) == 1  # and not one for each worker
    assert_nothing_is_left(patient)


@pytest.mark.parametrize(
    ("options", "what", "told", "fix"),
    [
        ({"queue": "gpuu"}, "queue", "Did you mean 'gpu'? There are:", "queue: gpu"),
        (
            {"job_extra_directives": ["--gres=gpu:3"]},
            "GPUs",
            "the largest of its nodes has gpu:2",
            "--gres=gpu:2",
        ),
        (
            {"job_extra_directives": ["--gres=tpu:1"]},
            "scheduler",
            "Invalid generic resource",
            "sinfo -o '%P %G'",
        ),
        ({"memory": "900GB"}, "scheduler", "is not available", "Ask for less of one node"),
    ],
    ids=["partition", "gpus", "gres", "memory"],
)
def test_what_no_node_has_is_told_and_not_submitted(patient, options, what, told, fix):
    patient.configure(**options)
    code, findings, _ = patient.examine("--submit")
    assert code == 1
    assert of_level(findings, "problem") == [what], findings
    assert told in findings[what]["told"]
    assert fix in findings[what]["fix"]
    assert "not submitted" in findings["job"]["told"]
    assert patient.clients.submitted() == {}


@pytest.fixture
def unshared(tmp_path):
    """Yield a folder of which the nodes see only the place where it is mounted."""
    folder = tmp_path / "unshared"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True, timeout=30)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, timeout=30)


def test_a_recipe_that_the_nodes_do_not_see_is_told(slurm, unshared, tmp_path):
    patient = Patient(unshared / "recipe", slurm)
    code, findings, _ = patient.examine("--submit")
    assert code == 1
    assert set(of_level(findings, "problem")) == {"job: recipe", "job: exp_dir"}, findings
    assert "model._target_ cannot be imported on node" in findings["job: recipe"]["told"]
    assert "No such file or directory" in findings["job: exp_dir"]["told"]
    assert len(slurm.submitted()) == 1
    assert_nothing_is_left(patient)


def test_an_output_folder_that_is_not_shared_is_told(patient, unshared):
    code, findings, _ = patient.examine("--submit", f"exp_dir={unshared}/exp")
    assert code == 1
    assert of_level(findings, "problem") == ["job: exp_dir"], findings
    assert "wrote there, but this machine does not see it" in findings["job: exp_dir"]["told"]
    assert "a folder that this machine and all nodes share" in findings["job: exp_dir"]["fix"]
    assert_nothing_is_left(patient)
    subprocess.run(["umount", str(unshared)], check=True, timeout=30)
    assert list(unshared.iterdir()) == []  # what the job wrote below it is gone as well


def test_a_job_that_waits_is_cancelled_after_the_timeout(patient):
    patient.configure(job_extra_directives=["--gres=gpu:1", "--begin=now+3600"])
    code, findings, told = patient.examine("--submit", "--timeout", "15")
    assert code == 1
    assert "1 of 1 job is pending" in told
    assert "no worker came within 15 s" in findings["job"]["told"]
    assert "BeginTime" in findings["job"]["told"]
    assert "--timeout 3600" in findings["job"]["fix"]
    assert_nothing_is_left(patient)


def test_ctrl_c_cancels_the_job(patient):
    patient.configure(job_extra_directives=["--gres=gpu:1", "--begin=now+3600"])
    process = patient.start("--submit")
    try:
        wait_until(lambda: patient.clients.active() or process.poll() is not None, _PATIENCE)
        assert patient.clients.active(), process.communicate()
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=_PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, told
    assert_nothing_is_left(patient)


def test_a_worker_that_cannot_start_is_told_with_its_log(patient):
    patient.configure(python="/nowhere/python")
    code, findings, _ = patient.examine("--submit")
    assert code == 1
    assert "exit code 127" in findings["job"]["told"]
    assert "/nowhere/python: No such file or directory" in findings["job"]["fix"]
    assert_nothing_is_left(patient)


def test_grid_engine_is_well_too(sge, tmp_path):
    patient = Patient(tmp_path / "recipe", sge)
    patient.configure(job_script_prologue=["export ESPNET3_NODE_GPUS=2"])
    code, findings, _ = patient.examine("--submit")
    assert code == 0, findings
    # Slots and memory have names of the centre there, and the block asks for none.
    assert of_level(findings, "warning") == ["options", "job: GPU"], findings
    assert "found suitable queue(s)" in findings["scheduler"]["told"]
    assert "ran on node" in findings["job"]["told"]
    assert_nothing_is_left(patient)


def test_grid_engine_refuses_what_no_host_has(sge, tmp_path):
    patient = Patient(tmp_path / "recipe", sge)
    patient.configure(job_extra_directives=["-l gpu=5"])
    code, findings, _ = patient.examine("--submit")
    assert code == 1
    assert of_level(findings, "problem") == ["scheduler"], findings
    assert "offers only hc:gpu=2" in findings["scheduler"]["told"]
    assert "not submitted" in findings["job"]["told"]
    patient.configure(queue="gpuq")
    code, findings, _ = patient.examine()
    assert code == 1
    assert "queue: gpu.q" in findings["queue"]["fix"]
    assert_nothing_is_left(patient)
