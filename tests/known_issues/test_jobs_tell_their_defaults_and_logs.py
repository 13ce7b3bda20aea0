"""Half an hour of walltime was silent, and jobs of runs in memory left slurm-N.out behind."""

import logging
import sys

import pytest

from espnet3.cli.recipe import run_recipe
from espnet3.parallel import parallel_map, use_parallel
from espnet3.parallel.checkup.backend import render
from espnet3.parallel.clusters import registry
from espnet3.parallel.clusters.registry import left_out, render_job_script
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.system import BaseSystem
from tests.helpers.recipe_copy import RecipeCopy, _restored

# As Slurm does, it writes a job's output where the script says, or into the working folder.
SBATCH = """
n=1; until mkdir "$0.$n" 2>/dev/null; do n=$((n + 1)); done
cp "$1" "$0.$n/script"
log=$(sed -n "s/^#SBATCH -o //p" "$1" | sed "s/%J/$n/"); log=${log:-slurm-$n.out}
setsid bash "$0.$n/script" >"$log" 2>&1 & echo $! >"$0.$n/pid"
echo "Submitted batch job $n"
"""
SCANCEL = 'for job; do kill -- "-$(cat "$(dirname "$0")/sbatch.$job/pid")"; done; true'


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put stand-ins for Slurm on the path; return the folder from which jobs are submitted."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in {"sbatch": SBATCH, "scancel": SCANCEL, "squeue": "true"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    registry.warn_once.cache_clear()
    return work


def block(**options):
    chosen = {"cores": 1, "memory": "1GB", "interface": "lo", **options}
    return {"env": "slurm", "n_workers": 1, "options": chosen}


def test_a_run_in_memory_leaves_nothing_where_it_was_started(slurm, caplog):
    with caplog.at_level(logging.INFO), use_parallel(block()):
        assert parallel_map(str.upper, ["a", "b"]) == ["A", "B"]
    assert list(slurm.iterdir()) == []
    script = (slurm.parent / "bin" / "sbatch.1" / "script").read_text()
    assert f"#SBATCH -o {slurm}/logs/jobs/" in script
    told = [record.message for record in caplog.records if "30 minutes" in record.message]
    assert len(told) == 1
    assert 'walltime: "04:00:00"' in told[0]


def fail(item):
    raise RuntimeError("not today")


def test_logs_of_a_run_that_failed_are_kept_and_named(slurm, caplog):
    with caplog.at_level(logging.INFO), use_parallel(block(walltime="01:00:00")):
        with pytest.raises(Exception, match="not today"):
            parallel_map(fail, range(2))
    (folder,) = (slurm / "logs" / "jobs").iterdir()
    assert f"Logs of the jobs: {folder}" in caplog.text
    assert [path.suffix for path in folder.iterdir()] == [".out"]
    assert "30 minutes" not in caplog.text
    assert not list(slurm.glob("slurm-*"))


def test_jobs_that_are_refused_leave_no_folder(slurm):
    (slurm.parent / "bin" / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (slurm / "logs").mkdir()
    with use_parallel(block()), pytest.raises(Exception, match="sbatch"):
        parallel_map(str, range(2))
    assert [path.name for path in slurm.iterdir()] == ["logs"]
    assert list((slurm / "logs").iterdir()) == []


@pytest.mark.filterwarnings("ignore:OAR Job memory")
@pytest.mark.parametrize("env", ["slurm", "pbs", "lsf", "oar", "moab", "sge"])
def test_the_default_of_each_scheduler_is_told(env):
    def told(**options):
        chosen = {"cores": 1, "memory": "1GB", **options}
        config = as_parallel_config({"env": env, "options": chosen})
        render_job_script(config)
        return any("30 minutes" in note for note in left_out(config))

    directives = {"slurm": "--time=60", "sge": "-l h_rt=60", "lsf": "-W 60"}
    assert told()
    assert not told(walltime="04:00")
    assert not told(job_extra_directives=[directives.get(env, "-l walltime=60")])
    assert not told(job_directives_skip=["walltime", "-t "])


def test_nothing_of_the_kind_is_said_of_others():
    for env, options in (("local", {}), ("htcondor", {"cores": 1, "memory": "1GB"})):
        assert left_out(as_parallel_config({"env": env, "options": options})) == []


def test_grid_engine_is_asked_for_slots_and_memory_by_name():
    def told(**options):
        chosen = {"cores": 4, "memory": "8GB", "walltime": "01:00:00", **options}
        return left_out(as_parallel_config({"env": "sge", "options": chosen}))

    slots, memory = told()
    assert '["-pe smp 4"]' in slots
    assert "h_vmem=" in memory
    assert told(resource_spec="h_vmem=2G", job_extra_directives=["-pe mpi 4"]) == []


def test_the_doctor_warns_of_the_default():
    _, findings = render(as_parallel_config(block()))
    (warning,) = (finding for finding in findings if finding.level == "warning")
    assert "30 minutes" in warning.told
    assert 'walltime: "04:00:00"' in warning.fix


@pytest.fixture(scope="module")
def asr(tmp_path_factory):
    """Return the template with its data."""
    recipe = RecipeCopy("TEMPLATE/asr", tmp_path_factory.mktemp("recipe") / "asr")
    recipe.run_here(BaseSystem, "--stages", "create_dataset", "--config", "conf/inference.yaml")
    return recipe


def infer(recipe, *words):
    line = ("--stage", "6", "--config", "conf/inference.yaml", *words)
    with _restored(recipe.folder):
        return run_recipe(BaseSystem, list(line), recipe_dir=recipe.folder)


def test_a_dry_run_tells_the_default(asr, capsys):
    files = ("conf/parallel_slurm.yaml", "--dry-run")
    assert infer(asr, *files, "parallel.options.walltime=null") == 0
    assert "30 minutes" in capsys.readouterr().out
    assert infer(asr, *files) == 0
    assert "30 minutes" not in capsys.readouterr().out


MISSING = [
    ("kube", "dask_kubernetes", {"image": "mine"}, "-e '.[kube]'"),
    ("ssh", "asyncssh", {"hosts": ["a", "b"]}, "-e '.[ssh]'"),
    ("slurm", "dask_jobqueue", {"cores": 1, "memory": "1GB"}, "dask-jobqueue"),
]


@pytest.mark.parametrize(("env", "package", "options", "install"), MISSING)
def test_what_is_not_installed_is_told_before_anything_starts(
    asr, capfd, caplog, monkeypatch, env, package, options, install
):
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    words = (f"parallel.env={env}", f"parallel.options={options}")
    line = f"pip install -c constraints.txt {install}"
    before = sorted(asr.folder.rglob("*"))
    assert infer(asr, *words) == 1
    assert line in capfd.readouterr().err
    caplog.clear()
    assert infer(asr, *words, "--dry-run") == 0
    shown = capfd.readouterr()
    assert line in caplog.text  # as a warning
    assert "test set clean" in shown.out
    assert sorted(asr.folder.rglob("*")) == before
    _, findings = render(as_parallel_config({"env": env, "options": options}))
    assert any(line in f"{finding.told} {finding.fix}" for finding in findings)
