"""`infer` on local_gpu showed fifty lines of Dask's log, with "Lost all workers" and a kill."""

import logging
import os
import subprocess
import sys

from espnet3.logs import open_stage_log, quiet
from espnet3.parallel import get_client, parallel_map, use_parallel
from tests.helpers.recipe_copy import RecipeCopy
from tests.nvml.stand_in import build_library, environment

NOISE = ("Lost all workers", "signal 9", "Nanny", "Scheduler", "Register worker", "CommClosed")


def test_infer_on_gpus_of_this_machine_tells_of_the_run_alone(tmp_path):
    recipe = RecipeCopy("TEMPLATE/asr", tmp_path / "asr")
    variables = {**environment(build_library(tmp_path), 2, None), "OMP_NUM_THREADS": "1"}
    words = ("--stages", "create_dataset", "infer", "--config", "conf/inference.yaml")
    done = subprocess.run(
        [sys.executable, "run.py", *words, "conf/parallel_gpu.yaml", "device=cpu"],
        cwd=recipe.folder, env={**os.environ, **variables}, timeout=170,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "clean is complete: 20 items, 0 failed" in done.stdout
    assert [word for word in NOISE if word in done.stdout] == []
    log = recipe.folder / "exp" / "inference" / "infer.log"
    assert "Workers are forked from one process" in log.read_text()


def test_a_terminal_sees_warnings_of_dask_and_all_of_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    dask, other = logging.getLogger("distributed.scheduler"), logging.getLogger("a_package")
    for log in (dask, other):
        monkeypatch.setattr(log, "level", logging.INFO)
    monkeypatch.setattr(logging.getLogger("distributed"), "propagate", True)
    with open_stage_log(tmp_path / "stage.log"):
        dask.info("Register worker")
        dask.warning("a worker was lost")
        other.info("a line of its own")
        with quiet("distributed"):
            logging.getLogger("distributed.nanny").warning("killed by signal 9")
    shown = capsys.readouterr().err
    assert "Register worker" not in shown
    assert "signal 9" not in shown
    assert "a worker was lost" in shown
    assert "a line of its own" in shown
    assert "Register worker" in (tmp_path / "stage.log").read_text()


def test_closing_a_cluster_is_no_news(caplog):
    with caplog.at_level(logging.WARNING), use_parallel({"env": "local", "n_workers": 2}):
        with get_client():
            assert parallel_map(str.upper, ["a", "b", "c"]) == ["A", "B", "C"]
    assert [record.message for record in caplog.records if "distributed" in record.name] == []
