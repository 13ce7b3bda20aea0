"""How many files a run makes is compared with what there is room for, before it starts."""

import logging
import os

import pytest

from espnet3.io.shared_files import count_free_files
from espnet3.parallel import folder_run
from tests.helpers.run_folders import run_square


def test_free_files_of_a_folder_that_is_not_there_are_those_of_its_parent(tmp_path):
    found = os.statvfs(tmp_path)
    free = count_free_files(tmp_path / "not" / "there")
    assert free is None if not found.f_files else free > 0


@pytest.mark.parametrize(("limit", "is_told"), [(10, True), (10_000, False)])
def test_run_of_too_many_files_is_told_when_it_is_planned(
    tmp_path, monkeypatch, caplog, limit, is_told
):
    monkeypatch.setattr(folder_run, "count_free_files", lambda folder: limit)
    with caplog.at_level(logging.WARNING, "espnet3"):
        run_square(tmp_path / "run")
    told = [record for record in caplog.records if "files and folders" in record.getMessage()]
    assert bool(told) == is_told
    if told:
        assert "shards_per_worker" in told[0].getMessage()
        assert "espnet3 tidy" in told[0].getMessage()
