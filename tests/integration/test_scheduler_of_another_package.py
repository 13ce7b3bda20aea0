"""A scheduler that another package brings, in one file: nothing here knows its name."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from espnet3.cli.main import main
from espnet3.config.load import load_config
from espnet3.errors import ConfigError, ResourceError
from espnet3.parallel import BaseRunner, use_parallel
from espnet3.parallel.clusters.registry import BACKENDS, check_resources, render_job_script
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.explain import explain_run
from espnet3.parallel.parallel import as_parallel_config
from espnet3.schedulers import forget_schedulers, known_scheduler
from espnet3.shards.records import RecordPaths, read_jobs
from espnet3.trainer.launching.launch import follow, plan_job, submit, write_script
from tests.helpers.providers import Provider
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[2]
PARTS = Path(__file__).parent / "pigeon"
OPTIONS = {"queue": "barn", "cores": 1, "memory": "1GB", "walltime": "01:00:00"}


def install(site: Path, entry_points: str) -> None:
    """Lay out a folder as pip would."""
    info = site / "pigeon-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[espnet3.schedulers]\n{entry_points}\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a folder with packages; forget what was found there afterwards."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(folder)
    known = dict(BACKENDS)
    yield folder
    forget_schedulers()
    sys.modules.pop("pigeon", None)
    BACKENDS.clear()
    BACKENDS.update(known)


@pytest.fixture
def pigeon(site, tmp_path, monkeypatch):
    """Install the scheduler and its commands; end the jobs that a test leaves."""
    install(site, "pigeon = pigeon:Pigeon")
    (site / "pigeon.py").write_text((PARTS / "pigeon.py").read_text())
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("pgsub", "pgdel", "pgstat"):
        (folder / name).write_text(f"#!{sys.executable}\n{(PARTS / 'commands.py').read_text()}")
        (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    monkeypatch.chdir(recipe)
    forget_schedulers()
    yield folder
    for job in folder.glob("jobs/*"):
        os.system(f"kill -9 -- -{(job / 'pid').read_text()} 2>/dev/null")


class Patient(BaseRunner):
    @staticmethod
    def forward(idx, hold):
        while idx >= 5 and os.path.exists(hold):
            wait_until(lambda: not os.path.exists(hold), 120)
        return idx


def is_at_work(job: Path) -> bool:
    try:
        status = Path(f"/proc/{(job / 'pid').read_text()}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status


def test_runs_that_wait_for_their_workers_have_jobs(pigeon, tmp_path):
    with use_parallel({"env": "pigeon", "n_workers": 2, "options": OPTIONS}):
        found = Patient(Provider(hold=""), output_dir="out")(range(20))
    assert [int(line) for line in found.read_text().splitlines()] == list(range(20))
    jobs = sorted((pigeon / "jobs").iterdir())
    assert len(jobs) == 2
    script = (jobs[0] / "script").read_text()
    assert "#PG --queue barn\n#PG --cpus 1\n#PG --memory 954M\n#PG --time 01:00:00\n" in script
    assert not any(map(is_at_work, jobs))


def test_a_detached_job_has_a_successor(pigeon, tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    jobs = pigeon / "jobs"
    config = {"env": "pigeon", "n_workers": 1, "mode": "async", "options": OPTIONS}
    with use_parallel(config):
        run = Patient(Provider(hold=str(hold)), output_dir="out")(range(16))
    wait_until(lambda: (jobs / "2" / "pid").exists() and run.status().status.n_shards_done, 120)
    assert "#PG --after 1\n" in (jobs / "2" / "script").read_text()
    subprocess.run(["pgdel", "1"], check=True)
    wait_until(lambda: "2" in {r.after for r in read_jobs(RecordPaths(run.run_dir))}, 120)
    (told,) = [f.told for f in explain_run(run.run_dir) if f.what == "jobs"]
    assert "1 job was cancelled by a user" in told
    hold.unlink()
    assert [int(line) for line in run.wait(120).read_text().splitlines()] == list(range(16))
    workers = {worker.record.job_id: worker.record for worker in run.status().workforce.workers}
    assert workers["2"].generation == 1
    assert workers["2"].n_shards > 0
    wait_until(lambda: not any(map(is_at_work, jobs.iterdir())), 120)


def test_a_waiting_job_is_explained_and_cancelled(pigeon, capsys):
    (pigeon / "no_wind").touch()
    config = {"env": "pigeon", "n_workers": 1, "mode": "async", "options": OPTIONS}
    with use_parallel(config):
        run = Patient(Provider(hold=""), output_dir="out")(range(4))
    (finding,) = [f for f in explain_run(run.run_dir) if f.what == "queue"]
    assert "no wind" in finding.told
    assert finding.fix.startswith("Nothing is free")
    assert main(["cancel", str(run.run_dir)]) == 0
    wait_until(lambda: not is_at_work(pigeon / "jobs" / "1"), 60)
    assert (pigeon / "jobs" / "1" / "shot").exists()


def test_the_doctor_checks_it(pigeon, capsys):
    options = {**OPTIONS, "queue": "bran"}
    text = json.dumps({"parallel": {"env": "pigeon", "n_workers": 2, "options": options}})
    Path("parallel.yaml").write_text(text)
    assert main(["doctor", "parallel.yaml", "--json"]) == 1
    found = {f["what"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert "pgsub, pgdel, pgstat are here" in found["commands"]["told"]
    assert found["queue"]["fix"] == "Write under options: queue: barn"
    assert "--cpus 1" in found["options"]["told"]
    main(["doctor", "parallel.yaml", "parallel.options.queue=barn", "--json"])
    found = {f["what"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found["queue"]["level"] == found["network"]["level"] == "ok"


def test_a_training_is_launched(pigeon):
    recipe = Path.cwd()
    (recipe / "run.py").write_text("import sys; open('trained', 'w').write(' '.join(sys.argv))\n")
    launch = {"scheduler": "pigeon", "queue": "roof", "time": "02:00:00", "memory": "4G"}
    trainer = {"accelerator": "cpu", "devices": 1}
    below = {"exp_dir": "exp", "trainer": trainer, "launch": launch}
    job = write_script(plan_job(load_config([], below=below), (), recipe_dir=recipe))
    script = Path(job.script).read_text()
    assert "#PG --queue roof\n#PG --cpus 1\n#PG --memory 4096M\n#PG --time 02:00:00\n" in script
    assert 'pgsub "$script" && exit 0' in script
    job_id = submit(job)
    assert job_id == "1"
    assert follow(job, job_id).cancel == "pgdel 1"
    wait_until(lambda: not is_at_work(pigeon / "jobs" / "1"), 60)
    assert (recipe / "trained").read_text() == "run.py --stages train"
    several = {**below, "trainer": {**trainer, "num_nodes": 2}}
    with pytest.raises(ConfigError, match="num_nodes: 1"):
        plan_job(load_config([], below=several), (), recipe_dir=recipe)


def test_the_class_of_the_page_is_enough(pigeon, site):
    page = (ROOT / "docs/clusters/adding-a-scheduler.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (entry,) = re.findall(r'schedulers"\]\n(.*?) = "(.*?)"', page)
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (site / "pigeon.py").write_text(source)
    assert entry == ("pigeon", "pigeon:Pigeon")
    script = render_job_script(as_parallel_config(OmegaConf.create(block).parallel))
    assert "#PG --queue barn\n#PG --cpus 4\n" in script
    Path("job.sh").write_text("#!/bin/sh\ntrue\n")
    scheduler = known_scheduler("pigeon")
    number = scheduler.submit_script("job.sh")
    wait_until(lambda: scheduler.jobs([number])[number].phase == "ended", 60)
    assert scheduler.jobs(["99"])["99"].phase == "unknown"


def test_its_name_is_one_of_those_that_are_known(pigeon):
    with pytest.raises(ConfigError, match=r"Did you mean 'pigeon'\?"):
        as_parallel_config({"env": "pigeo"})
    assert ParallelConfig(env="pigeon", mode="async").env == "pigeon"
    config = ParallelConfig(env="pigeon", options={**OPTIONS, "quue": "barn"})
    with pytest.raises(ConfigError, match=r"options\.quue is no option of PigeonCluster"):
        check_resources(config)


@pytest.mark.parametrize(
    ("value", "told"),
    [("no_such_module:Pigeon", "No module named"), ("json:JSONDecoder", "must be a subclass")],
)
def test_one_that_cannot_be_loaded_is_told_with_its_place(site, value, told):
    install(site, f"pigeon = {value}")
    forget_schedulers()
    with pytest.raises(ResourceError, match=told) as error:
        as_parallel_config({"env": "pigeon"})
    assert value in str(error.value)
