"""Items that kill their worker, or its whole job: they are isolated, and all others are done."""

import pytest

from espnet3.shards.records import read_deaths
from tests.cluster.detached_run import DetachedRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
BAD = 41


@pytest.mark.parametrize("how", ["exit", "eat"])
def test_an_item_that_kills_its_worker_is_isolated(strict_slurm, tmp_path, reference, how):
    block = {**strict_slurm.parallel(2, memory="600MB"), "retries": 1}
    run = DetachedRun(
        tmp_path / "out", strict_slurm, seconds=0.05, parallel=block,
        on_error="skip", bad=[BAD], how=how,
    )  # fmt: skip
    run.submit()
    run.wait_for_end(300.0)
    lines = reference.splitlines(keepends=True)
    assert run.text == b"".join(line for line in lines if not line.startswith(b"utt41 "))
    (failure,) = run.failures()
    assert failure["index"] == BAD, failure
    assert run.success["n_failed"] == 1
    assert {note.start for note in read_deaths(run.paths)} == {BAD}
    explained = run.tell("explain")
    print(explained)
