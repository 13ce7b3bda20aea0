"""`espnet3 scaling` on a real Slurm: a row for each number of jobs, and none stays behind."""

import json
import re
import sys

import pytest

pytestmark = pytest.mark.cluster
_PATIENCE = 170.0  # seconds; other programs share the machine


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_jobs_are_measured_and_none_is_left(slurm, tmp_path, mode):
    block = {**slurm.parallel(n_workers=7, queue="cpu"), "mode": mode}
    (tmp_path / "cluster.yaml").write_text(json.dumps({"parallel": block}))
    words = ("cluster.yaml", "--workers", "1", "2", "--items", "24", "--seconds", "0.2")
    command = (sys.executable, "-m", "espnet3.cli", "scaling", *words)
    process = slurm.start(*command, cwd=tmp_path)
    out, told = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 0, told
    rows = re.findall(rf"^\| slurm / {mode} \| (\d)[^|]* \| 24 \|", out, re.M)
    assert rows == ["1", "2"], out
    slurm.wait_until_empty()  # a worker that has signed off ends its job a moment later
    assert slurm.left_behind() == {}
    assert list(tmp_path.glob("scaling-*")) == []
