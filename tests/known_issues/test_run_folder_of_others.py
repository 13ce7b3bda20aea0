"""Others may write into a run folder: what is there does not decide where one reads and writes."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from espnet3.cli.main import main
from espnet3.errors import ResourceError, RunFolderError
from espnet3.io.shared_files import DamagedFileError, read_record
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.description import load_runner
from espnet3.parallel.detached.handle import merge_detached
from espnet3.parallel.detached.logs import logs_of_failed, logs_of_workers
from espnet3.parallel.detached.submit import cancel_jobs, submit_workers
from espnet3.parallel.faults import forget_deaths
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import read_failures, read_success
from espnet3.shards.records import (
    CrashNote,
    JobRecord,
    RecordPaths,
    StopMark,
    find_damaged,
    make_folders,
    read_deaths,
    read_jobs,
    read_stop,
    read_workers,
    write_stop,
)
from espnet3.shards.status import read_status
from tests.helpers.run_folders import describe, lose_driver, run_square
from tests.helpers.slurm_stand_in import OPTIONS, Slurm


def change(path: Path, **values: Any) -> None:
    mode = path.stat().st_mode
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    path.chmod(mode)


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A detached run whose shards are all done, and that nobody merged."""
    root = tmp_path / "mine" / "run"
    run_square(root)
    lose_driver(root)
    describe(root, env="local", n_workers=1)
    return root


@pytest.mark.parametrize(
    "output_dir", ["..", "../..", "../victim", "{tmp_path}/victim", "split.00"]
)
def test_a_changed_plan_does_not_choose_where_the_merge_writes(done, tmp_path, output_dir):
    (tmp_path / "victim").mkdir()
    change(done / "manifest.json", output_dir=output_dir.format(tmp_path=tmp_path))
    before = sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(done))
    with pytest.raises(RunFolderError, match=r"manifest\.json says that the outputs belong into"):
        merge_detached(done)
    assert main(["merge", str(done)]) == 1
    assert sorted(p for p in tmp_path.rglob("*") if not p.is_relative_to(done)) == before
    assert not (done / "_SUCCESS.json").exists()


def test_nor_in_a_folder_of_the_version_before(done):
    path = RecordPaths(done).run
    values = json.loads(path.read_text())
    del values["output_dir"]
    path.write_text(json.dumps(values))
    assert load_runner(done).output_dir == done
    change(done / "manifest.json", output_dir="..")
    with pytest.raises(RunFolderError, match="it was changed since"):
        load_runner(done)


def test_the_merge_of_an_unchanged_run_writes_where_it_should(done):
    merge_detached(done)
    assert (done / "results.jsonl").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_joining_above_a_run_of_somebody_else_needs_their_name(tmp_path, capsys):
    root = tmp_path / "shards"
    run_square(root)
    lose_driver(root)
    change(root / "manifest.json", output_dir="..")
    os.chown(root / "manifest.json", 1, -1)
    assert main(["merge", str(root)]) == 1
    assert "--trust daemon" in capsys.readouterr().err
    assert not (tmp_path / "results.jsonl").exists()
    assert main(["merge", str(root), "--trust", "daemon"]) == 0
    assert (tmp_path / "results.jsonl").exists()


def write(folder: Path, name: str, record: Any, **changes: Any) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**vars(record), **changes}))
    return path


def test_a_note_of_a_death_renames_no_file_elsewhere(done, tmp_path):
    victim = tmp_path / "thesis.json"
    victim.write_text("{}")
    deaths = make_folders(done).deaths
    (deaths / "1-x").mkdir()  # what the path of a note would go through
    write(deaths, "1-a", CrashNote(1, "node", "x"), note_id=f"x/../../../../../{victim.stem}")
    forget_deaths(done)
    assert victim.exists()
    assert read_deaths(RecordPaths(done)) == []


@pytest.mark.parametrize(
    "job_id", ["0", "all", "ALL", "anna", "-u", "--user=root", "1;id", "1 2", ""]
)
def test_no_word_of_a_record_but_a_number_is_given_to_a_scheduler(
    done, job_id, tmp_path, monkeypatch
):
    told = tmp_path / "told"
    for name in ("scancel", "bkill", "condor_rm", "qdel", "squeue", "bjobs", "condor_q"):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\necho "$0 $@" >> {told}\n')
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for env in ("slurm", "lsf", "htcondor", "pbs"):
        cancel_jobs([JobRecord(env, job_id, 1.0)])
    lines = told.read_text().splitlines() if told.exists() else []
    assert [
        line
        for line in lines
        if Path(line.split()[0]).name in ("scancel", "bkill", "condor_rm", "qdel")
    ] == []


@pytest.mark.parametrize("job_id", ["-u", "--user=root", "1;id", "1 2", "a\0b", "1\n2"])
def test_a_record_with_an_odd_number_of_a_job_is_left_out(done, job_id, caplog):
    jobs = make_folders(done).jobs
    write(jobs, "good", JobRecord("slurm", "12", 1.0))
    write(jobs, "odd", JobRecord("slurm", "13", 1.0), job_id=job_id)
    assert [job.job_id for job in read_jobs(RecordPaths(done))] == ["12"]
    assert "odd.json is damaged" in caplog.text
    assert "odd.json" in find_damaged(RecordPaths(done))[0]


@pytest.mark.parametrize(
    "log", ["/etc/hostname", "../../secret.txt", "../../../etc/logs", "a\0b", "é" * 200]
)
def test_a_record_does_not_choose_which_file_is_shown(done, tmp_path, log, capsys):
    (tmp_path / "secret.txt").write_text("corvus")
    paths = make_folders(done)
    (paths.workers / "w.json").write_text(
        json.dumps({"owner_id": "w", "host": "n", "pid": 5, "started": 1.0, "log": log})
    )
    assert "w" not in [worker.owner_id for worker in read_workers(paths)]
    shown = [line for part in logs_of_workers(done) for line in part.lines]
    (done / "failed.jsonl").write_text(
        json.dumps({"position": 3, "shard": 99, "index": 3, "log": log}) + "\n"
    )
    shown += [line for part in logs_of_failed(done) for line in part.lines]
    assert "corvus" not in "".join(shown)
    assert main(["logs", str(done), "--failed"]) == 0


def test_the_log_beside_another_run_is_one(done):
    paths = make_folders(done)
    values = {"owner_id": "w", "host": "n", "pid": 5, "started": 1.0}
    (paths.workers / "w.json").write_text(json.dumps({**values, "log": "../two/logs/x.log"}))
    assert "../two/logs/x.log" in [worker.log for worker in read_workers(paths)]


def test_a_script_is_noted_without_the_token_that_it_exports(done, tmp_path, monkeypatch):
    slurm = Slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{slurm.here}{os.pathsep}{os.environ['PATH']}")
    options = {**OPTIONS, "job_script_prologue": ["export HF_TOKEN=corvus17"]}
    submit_workers([done], ParallelConfig(env="slurm", n_workers=1, options=options), 1)
    assert "export HF_TOKEN=corvus17\n" in (slurm.here / "scripts").read_text()
    (noted,) = RecordPaths(done).jobs.iterdir()
    assert "corvus17" not in noted.read_text()
    (record,) = read_jobs(RecordPaths(done))
    assert "\nexport HF_TOKEN=" in record.script
    (slurm.here / "refusal").write_text("sbatch: error: invalid partition\n")
    with pytest.raises(ResourceError, match=r"\nexport HF_TOKEN=") as refused:
        submit_workers([done], ParallelConfig(env="slurm", n_workers=1, options=options), 1)
    assert "corvus17" not in str(refused.value)


def test_a_damaged_mark_stops_a_run_until_somebody_resumes_it(done):
    write_stop(RecordPaths(done), StopMark("cancelled", "x"))
    RecordPaths(done).stop.write_text('{"kind": 5}')
    mark = read_stop(RecordPaths(done))
    assert mark is not None
    assert "stop.json is damaged" in mark.reason
    assert read_status(done).stop is not None


@pytest.mark.parametrize("name", ["manifest.json", "_SUCCESS.json", "detached/stop.json"])
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(done, name, capsys, caplog):
    path = done / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    main(["status", str(done)])
    assert f"{path.name} is damaged" in capsys.readouterr().err + caplog.text


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("kind", ["workers", "deaths", "jobs"])
def test_what_cannot_be_read_is_told_apart_from_what_is_damaged(
    done, monkeypatch, caplog, capsys, code, kind
):
    paths = make_folders(done)
    records = {
        "workers": {"owner_id": "w", "host": "n", "pid": 5, "started": 1.0},
        "deaths": {"shard": 1, "host": "n", "reason": "x"},
        "jobs": {"env": "slurm", "job_id": "1", "submitted": 1.0},
    }
    path = getattr(paths, kind) / "away.json"
    path.write_text(json.dumps(records[kind]))
    real = os.open

    def away(name: Any, *args: Any, **kwargs: Any) -> int:
        if str(name) == str(path):
            raise OSError(code, os.strerror(code), str(path))
        return real(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", away)
    assert main(["status", str(done)]) == 0
    assert main(["explain", str(done)]) == 0
    assert f"away.json cannot be read from here: {os.strerror(code)}" in capsys.readouterr().out
    assert "is damaged" not in caplog.text
    if kind == "jobs":  # who counts the others would submit too many
        with pytest.raises(OSError, match=os.strerror(code)):
            read_jobs(paths)


def test_a_folder_in_place_of_a_record_is_left_out(done):
    (make_folders(done).jobs / "x.json").mkdir()
    assert read_jobs(RecordPaths(done)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"bounds": [0, 5, 5, 20]}, {"bounds": [0, 30]}, {"bounds": []}, {"costs": [1.0]},
        {"costs": [float("nan")] * 16}, {"costs": [1e308] * 16}, {"costs": [-1.0] * 16},
        {"n_items": 21}, {"created": 1e308}, {"created": -1}, {"run_id": ""},
        {"run_id": "a\x1b[2J"}, {"items": {"kind": "json", "sha256": "../../../etc/passwd"}},
        {"items": {"kind": "range", "range": [0, 20, 0]}}, {"items": {"kind": "new"}},
        {"batches": {}}, {"output_dir": "a\0b"}, {"padded_share": 2.0},
    ],
)  # fmt: skip
def test_a_plan_that_makes_no_sense_is_refused(done, changes):
    change(done / "manifest.json", **changes)
    with pytest.raises(DamagedFileError, match=r"manifest\.json is damaged"):
        load_manifest(done)


def test_items_of_another_number_than_planned_are_refused(done):
    change(done / "manifest.json", items={"kind": "range", "range": [0, 19, 1]})
    manifest = load_manifest(done)
    assert manifest is not None
    with pytest.raises(DamagedFileError, match="plans 20 items, and names 19"):
        manifest.open_items(done)


def test_damaged_lines_of_failed_items_are_left_out_and_named_once(done, caplog):
    good = {"position": 4, "shard": 99, "index": 4, "error": "E"}
    lines = [[1], {"position": -1, "shard": 99}, good, {"position": "x"}, {**good, "pid": 10**40}]
    (done / "failed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert 4 in [failure["position"] for failure in read_failures(done)]
    assert caplog.text.count("failed.jsonl") == 1
    assert "3 more lines are left out" in caplog.text


def test_a_proof_that_names_files_elsewhere_is_none(tmp_path, caplog):
    run_square(tmp_path)
    manifest = load_manifest(tmp_path)
    assert manifest is not None
    assert read_success(manifest.layout(tmp_path), manifest.run_id) is not None
    change(tmp_path / "_SUCCESS.json", outputs={"../x": [1, 2]})
    assert read_success(manifest.layout(tmp_path), manifest.run_id) is None
    assert "_SUCCESS.json is damaged" in caplog.text


def test_names_that_are_no_utf8_come_back(tmp_path):
    path = write(tmp_path, "job", JobRecord("slurm", "12", 1.0), log="logs/caf\udce9.log")
    job = read_record(path, JobRecord)
    assert job is not None
    assert job.log == "logs/caf\udce9.log"
