"""Runners whose workers are jobs of a real Grid Engine: four nodes with two stand-in GPUs each."""

import pytest

from tests.cluster.clients import wait_for

pytestmark = pytest.mark.cluster
_PATIENCE = 120.0  # seconds; other programs share the machine


def test_a_job_that_is_cancelled_costs_no_item(sge, sge_job, reference):
    run = sge_job(seconds=0.1)
    driver = run.start()
    wait_for(driver, lambda: run.n_running == 2)
    sge.cancel(min(sge.active()))
    _, told = driver.communicate(timeout=_PATIENCE)
    assert driver.returncode == 0, told
    assert "was lost: it left the cluster" in told
    assert run.text == reference
    run.assert_tidy()
    assert sge.left_behind() == {}


def test_ctrl_c_leaves_no_job(sge, sge_job):
    run = sge_job(seconds=0.2)
    driver = run.start()
    wait_for(driver, lambda: run.n_committed >= 1)
    run.interrupt(driver)
    _, told = driver.communicate(timeout=60)
    assert driver.returncode == 130, told
    assert "to resume, run again: python" in told
    assert "Traceback" not in told
    assert sge.left_behind() == {}


def test_a_queue_that_does_not_exist_is_told_in_the_words_of_qsub(sge, sge_job):
    run = sge_job(parallel=sge.parallel(queue="weekend.q"))
    driver = run.start()
    _, told = driver.communicate(timeout=_PATIENCE)
    assert driver.returncode == 1
    assert "qsub refused a job" in told
    assert 'Job was rejected because job requests unknown queue "weekend.q"' in told
    assert sge.active() == {}
