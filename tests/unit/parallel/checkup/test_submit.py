"""The probe in real processes of this machine, and what is made of its report."""

import sys
from dataclasses import replace

import pytest

from espnet3.parallel.checkup.probe import ProbeRequest, Written, look
from espnet3.parallel.checkup.submit import ProbeJob, judge, submit_probe
from espnet3.parallel.config import ParallelConfig

LOCAL = ParallelConfig(env="local")
GPU = ParallelConfig(
    env="slurm",
    options={"cores": 1, "memory": "1GB", "job_extra_directives": ["--gres=gpu:1"]},
)


def levels(findings):
    return {finding.what: finding.level for finding in findings}


def test_a_worker_of_this_machine_reports_all_that_is_right(awkward):
    (awkward / "exp").mkdir()
    folders = {"exp_dir": awkward / "exp" / "new", "log_directory": awkward}
    trial = ProbeJob(LOCAL, folders, targets=[("model._target_", "fractions.Fraction")])
    findings, judged = submit_probe(trial)
    assert set(levels(findings).values()) == {"ok"}, findings
    assert judged == {"exp_dir", "log_directory"}
    assert [path.name for path in awkward.rglob("*")] == ["exp"]


def test_settings_that_are_made_in_one_folder_do_not_collide(tmp_path):
    folders = {"exp_dir": tmp_path / "exp", "log_directory": tmp_path / "logs"}
    findings, _ = submit_probe(ProbeJob(LOCAL, folders))
    assert set(levels(findings).values()) == {"ok"}, findings
    assert list(tmp_path.iterdir()) == []


def test_a_worker_of_dask_reports_as_well(dask_address, tmp_path):
    lines = []
    config = ParallelConfig(env="dask", options={"address": dask_address})
    findings, _ = submit_probe(ProbeJob(config, {"exp_dir": tmp_path}, tell=lines.append))
    assert set(levels(findings).values()) == {"ok"}, findings
    assert dask_address in findings[0].told
    assert "has come" in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_imported_is_a_problem(tmp_path):
    trial = ProbeJob(
        LOCAL,
        {"exp_dir": tmp_path},
        targets=[("model._target_", "no_such_module.Model")],
        recipe_dir=tmp_path / "gone",
    )
    findings, _ = submit_probe(trial)
    told = [finding.told for finding in findings if finding.level == "problem"]
    assert len(told) == 2
    assert "gone is not there" in told[0]
    assert "model._target_ cannot be imported" in told[1]


def test_a_folder_that_vanishes_is_a_problem_and_no_traceback(tmp_path):
    config = ParallelConfig(env="dask", options={"address": "tcp://127.0.0.1:1", "timeout": 1})
    (finding,), judged = submit_probe(ProbeJob(config, {"exp_dir": tmp_path}))
    assert (finding.level, finding.what) == ("problem", "job")
    assert judged == set()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def report():
    here = look(ProbeRequest(token="t", sys_path=list(sys.path), folders={}))
    return replace(here, host="node1", written={"exp_dir": Written(free=10**12, saw_ours=True)})


def test_a_report_like_this_machine_is_ok(report):
    assert set(levels(judge(report, {"exp_dir": 0.1}, 0.0, LOCAL)).values()) == {"ok"}


@pytest.mark.parametrize(
    ("changes", "what", "level", "text"),
    [
        ({"python": "2.7.18"}, "job: Python", "problem", "Python 2.7.18, and here it is"),
        ({"espnet3_dir": "/old"}, "job: packages", "warning", "imported from /old"),
        ({"imports": {"model": "x"}}, "job: recipe", "problem", "cannot be imported on node1"),
    ],
)
def test_differences_are_told(report, changes, what, level, text):
    findings = judge(replace(report, **changes), {"exp_dir": 0.1}, 0.0, LOCAL)
    found = next(finding for finding in findings if finding.what == what)
    assert found.level == level
    assert text in found.told
    assert found.fix


@pytest.mark.parametrize(("package", "level"), [("distributed", "problem"), ("numpy", "warning")])
def test_packages_that_differ_are_told_by_weight(report, package, level):
    packages = {**report.packages, package: "0.1"}
    findings = judge(replace(report, packages=packages), {"exp_dir": 0.1}, 0.0, LOCAL)
    found = next(finding for finding in findings if finding.what == "job: packages")
    assert found.level == level
    assert f"{package} 0.1 (" in found.told


@pytest.mark.parametrize(
    ("written", "delay", "level", "text"),
    [
        (Written(error="Read-only file system: /x"), None, "problem", "cannot write: Read-only"),
        (Written(10**12, True), None, "problem", "this machine does not see it"),
        (Written(10**12, False), 0.1, "problem", "does not see a file that this machine wrote"),
        (Written(10**12, True), 30.0, "warning", "seen here after 30.0 s"),
        (Written(10, True), 0.1, "warning", "0 GB free"),
    ],
)
def test_folders_are_judged_from_both_sides(report, written, delay, level, text):
    changed = replace(report, written={"exp_dir": written})
    found = judge(changed, {"exp_dir": delay}, 0.0, LOCAL)[-1]
    assert (found.what, found.level) == ("job: exp_dir", level)
    assert text in found.told


@pytest.mark.parametrize(
    ("visible", "gpus", "trouble", "level"),
    [
        ("0", ["A100"], "", "ok"),
        ("0", [], "torch 2 is a build without GPUs", "warning"),
        ("0", [], "torch finds none", "problem"),
        (None, [], "torch finds none", "problem"),
        (None, ["A100", "A100"], "", "warning"),
    ],
)
def test_the_gpu_that_was_asked_for_is_looked_for(report, visible, gpus, trouble, level):
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    changed = replace(report, variables=variables, gpus=gpus, gpu_problem=trouble)
    assert levels(judge(changed, {"exp_dir": 0.1}, 0.0, GPU))["job: GPU"] == level


def test_a_clock_that_is_off_is_a_warning(report):
    assert levels(judge(report, {"exp_dir": 0.1}, 40.0, LOCAL))["job: clock"] == "warning"
