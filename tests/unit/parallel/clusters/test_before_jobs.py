"""What is looked at before the first job is submitted."""

import os

import pytest

from espnet3.errors import ResourceError
from espnet3.parallel.clusters.before_jobs import check_log_folder


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
