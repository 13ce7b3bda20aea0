import json
import os

import pytest

from espnet3.cli.main import main
from espnet3.cli.run_control import parse
from espnet3.errors import ConfigError
from espnet3.parallel.detached.control import changed_config
from espnet3.parallel.detached.description import load_trusted
from espnet3.shards.records import RecordPaths, read_deaths, read_stop
from tests.helpers.phrases import says_to_rerun


def change_json(path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def description(detached):
    """The description of a run that was started on Slurm."""
    slurm = {"env": "slurm", "n_workers": 64, "retries": 7, "options": {"queue": "gpu"}}
    change_json(detached.paths.run, parallel={**slurm, "mode": "async", "adaptive": None})
    return load_trusted(detached.root)


def test_another_backend_drops_options_and_keeps_what_is_of_the_run(description):
    config = changed_config(description, {"env": "local"})
    assert (config.env, config.options, config.retries) == ("local", {}, 7)
    assert config.n_workers == len(os.sched_getaffinity(0)), "not 64 processes on a laptop"
    assert config.mode == "async"


def test_the_same_backend_keeps_its_options(description):
    config = changed_config(description, {"n_workers": 8})
    assert (config.env, config.options, config.n_workers) == ("slurm", {"queue": "gpu"}, 8)


def test_a_block_replaces_that_of_another_backend(description):
    config = changed_config(description, {"env": "sge", "options": {"queue": "all.q"}})
    assert (config.options, config.n_workers) == ({"queue": "all.q"}, 64)


def test_a_line_may_hold_folders_a_file_and_changes(detached, tmp_path):
    file = tmp_path / "parallel_slurm.yaml"
    file.write_text("parallel:\n  env: slurm\n  n_workers: 3\n  options:\n    queue: gpu\n")
    words = [str(detached.root), str(file), "options.queue=long", "parallel.retries=1"]
    request = parse([*words, "--workers", "2", "--trust", "anna"], "resume", "")
    assert request.run_dirs == [detached.root]
    assert request.changes == {
        "env": "slurm", "n_workers": 3, "retries": 1, "options": {"queue": "long"},
    }  # fmt: skip
    assert request.settings == {
        "n_more": 2, "trust": "anna", "is_block": True, "faults": {},
    }  # fmt: skip


def test_an_option_is_changed_beside_the_others(detached, description):
    words = [str(detached.root), "options.walltime=10:00:00", "n_workers=8"]
    config = changed_config(description, parse(words, "resume", "").changes)
    assert config.options == {"queue": "gpu", "walltime": "10:00:00"}
    assert (config.env, config.n_workers) == ("slurm", 8)


def test_a_whole_block_keeps_no_option_of_the_one_before(description):
    block = {"env": "slurm", "options": {"cores": 1}}
    assert changed_config(description, block, is_block=True).options == {"cores": 1}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers", "0"], "'0' is not a number from 1 on"),
        (["conf/absent.yaml"], "conf/absent.yaml"),
        (["n_wokers=2"], "Did you mean 'n_workers'?"),
        (["--env", "slrum"], "Did you mean 'slurm'?"),
    ],
)
def test_mistakes_are_named_before_anything_is_submitted(detached, capsys, words, told):
    detached.stop("cancelled", "cancelled by me")
    assert main(["resume", str(detached.root), *words]) in (1, 2)
    assert told in capsys.readouterr().err
    assert read_stop(detached.paths) is not None


def test_a_complete_run_needs_no_workers(complete, capsys):
    assert main(["resume", str(complete)]) == 0
    assert f"{complete} is complete; nothing to do." in capsys.readouterr().out


def test_a_run_that_was_not_detached_is_refused_with_the_way_on(stopped, capsys):
    assert main(["resume", str(stopped)]) == 1
    assert says_to_rerun(capsys.readouterr().err)


def test_the_mark_stays_if_nothing_could_be_submitted(detached, capsys, monkeypatch):
    detached.stop("failed", "Item 3 is broken")
    monkeypatch.setenv("PATH", "/nonexistent")
    slurm = ["--env", "slurm", "options.cores=1", "options.memory=1GB"]
    assert main(["resume", str(detached.root), *slurm]) == 1
    assert "sbatch" in capsys.readouterr().err
    mark = read_stop(detached.paths)
    assert mark is not None
    assert mark.reason == "Item 3 is broken"


def test_workers_that_are_there_are_enough(detached, capsys):
    for job in ("1", "2"):
        detached.worker(job, env="local")
    detached.stop("cancelled", "cancelled by me")
    assert main(["resume", str(detached.root)]) == 0
    told = capsys.readouterr().out
    assert "2 workers of local at work or in the queue already." in told
    assert "Nothing was submitted" in told
    assert read_stop(detached.paths) is None


def test_after_a_failure_what_died_is_tried_again(detached):
    for job in ("1", "2"):
        detached.worker(job, env="local")
    detached.death(2)
    detached.death(15, kind="walltime")
    detached.stop("failed", "shard 2 keeps dying")
    assert main(["resume", str(detached.root)]) == 0
    assert [note.shard for note in read_deaths(RecordPaths(detached.root))] == [15]


def test_retry_must_say_what(detached, capsys):
    assert main(["retry", str(detached.root)]) == 2
    assert "--failed" in capsys.readouterr().err


def test_retry_sets_shards_with_failed_items_aside(detached, capsys):
    for job in ("1", "2"):
        detached.worker(job, env="local")
    before = set(detached.root.glob("split.*"))
    assert main(["retry", str(detached.root), "--failed"]) == 0
    assert "2 failed items in 2 shards" in capsys.readouterr().out
    gone = before - set(detached.root.glob("split.*"))
    assert len(gone) == 2


def test_retry_with_changed_code_is_refused_before_anything_is_set_aside(detached, capsys):
    code = load_trusted(detached.root).code
    assert code
    change_json(detached.paths.run, code=dict.fromkeys(code, "another digest"))
    before = set(detached.root.glob("split.*"))
    assert main(["retry", str(detached.root), "--failed"]) == 1
    assert "changed since the run was submitted" in capsys.readouterr().err
    assert set(detached.root.glob("split.*")) == before


def test_a_changed_block_is_checked(description):
    with pytest.raises(ConfigError, match="n_workers"):
        changed_config(description, {"n_workers": 0})
