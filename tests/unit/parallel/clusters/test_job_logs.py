"""Finding the log of a job."""

import os

import pytest

from espnet3.errors import ResourceError
from espnet3.parallel.clusters.job_logs import check_log_folder, find_log, words_of_daemon
from espnet3.schedulers import known_scheduler


@pytest.mark.parametrize(
    ("env", "name", "job_id"),
    [
        ("slurm", "espnet3-asr-12.err", "12"),
        ("lsf", "dask-worker-12.err", "12"),
        ("sge", "dask-worker.o12", "12"),
        ("sge", "dask-worker.e12", "12"),
        ("pbs", "dask-worker.o12", "12"),
        ("pbs", "12.head.OU", "12"),
        ("pbs", "12.head.cluster.example.ER", "12"),
        ("moab", "12.head.ER", "12"),
        ("oar", "OAR.dask-worker.12.stderr", "12"),
        ("htcondor", "worker-12.0.err", "12.0"),
    ],
)
def test_a_log_is_found_by_the_number_of_its_job(awkward, env, name, job_id):
    (awkward / name).write_text("words")
    others = ("espnet3-asr-112.err", "dask-worker.o121", "asr12-7.err", "112.head.ER", "notes")
    for other in others:
        (awkward / other).write_text("many more words")
    (awkward / f".espnet3-tls-{job_id}").mkdir()
    folders = [awkward / "missing", awkward]
    assert find_log(folders, job_id, known_scheduler(env)) == awkward / name


def test_the_number_of_a_job_is_no_pattern(tmp_path):
    (tmp_path / "dask-worker-1.err").touch()
    assert find_log([tmp_path], "[1]", known_scheduler("slurm")) is None


def test_of_several_logs_the_longest_is_taken(tmp_path):
    (tmp_path / "dask-worker-12.err").write_text("Traceback")
    (tmp_path / "dask-worker-12.out").touch()
    assert find_log([tmp_path], "12", known_scheduler("slurm")).name == "dask-worker-12.err"


def test_the_words_of_slurms_daemon_are_found(tmp_path):
    log = tmp_path / "dask-worker-12.err"
    ended = "JOB 12 ON node1 CANCELLED AT 2026-11-16T10:48:57 DUE TO TIME LIMIT"
    log.write_text(f"words\nslurmstepd-node1: error: *** {ended} ***\n")
    assert words_of_daemon(log, known_scheduler("slurm")) == ended


def test_the_folder_of_the_logs_is_made_and_nothing_stays_in_it(awkward):
    folder = awkward / "logs" / "jobs"
    check_log_folder({"log_directory": str(folder)})
    assert list(folder.iterdir()) == []
    check_log_folder({})


def test_a_folder_that_cannot_be_made_is_told_with_what_to_set(tmp_path):
    (tmp_path / "logs").touch()
    with pytest.raises(ResourceError, match=r"Nothing was submitted.*log_directory: logs/jobs"):
        check_log_folder({"log_directory": str(tmp_path / "logs" / "jobs")})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ResourceError, match="Permission denied"):
        check_log_folder({"log_directory": str(tmp_path)})
    tmp_path.chmod(0o700)
