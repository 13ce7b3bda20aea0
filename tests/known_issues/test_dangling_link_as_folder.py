"""A link whose target is gone, such as an `exp` on a scratch disk, is named with its target."""

import pytest

from espnet3.cli.console import guarded
from espnet3.cli.stage_loop import _unwritable, describe_failure
from espnet3.errors import ResourceError, RunFolderError
from espnet3.io.atomic import folder_trouble
from espnet3.parallel import BaseRunner, use_parallel
from espnet3.parallel.clusters.job_logs import check_log_folder
from espnet3.parallel.clusters.tls import RunSecurity
from espnet3.systems.base.stages import STAGES
from tests.helpers.providers import Provider


@pytest.fixture
def link(tmp_path):
    """Return a link to a folder that is not there."""
    link = tmp_path / "exp"
    link.symlink_to("scratch disk/exp")
    return link


class Same(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx


@pytest.mark.parametrize("below", ["", "decode", "decode/test"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_as_an_output_folder(link, below, mode):
    with use_parallel({"env": "local", "mode": mode}), pytest.raises(RunFolderError) as error:
        Same(Provider(), output_dir=link / below)(range(3))
    assert f"{link} is a symbolic link to {link.parent}/scratch disk/exp" in str(error.value)
    assert "mkdir -p" in str(error.value)
    assert not link.exists()


def test_as_a_folder_of_logs(link):
    with pytest.raises(ResourceError, match=r"is a symbolic link to .*log_directory: logs/jobs"):
        check_log_folder({"log_directory": str(link / "logs")})


def test_as_a_folder_of_certificates(link):
    with pytest.raises(ResourceError, match="is a symbolic link to "):
        RunSecurity(link / "tls").write()


def making(folder):
    with pytest.raises(OSError, match="exp") as error:
        folder.mkdir(parents=True, exist_ok=True)
    return error.value


def test_as_the_folder_of_an_experiment(link):
    told = str(_unwritable(link, making(link / "config")))
    assert f"{link} is a symbolic link to " in told


def test_in_any_stage_that_makes_a_folder(link):
    told = describe_failure(STAGES[0], making(link / "x"), None)
    assert f"{link} is a symbolic link to " in told


def test_in_any_command(link, capsys):
    def run():
        (link / "x").mkdir(parents=True, exist_ok=True)

    assert guarded(run) == 1
    assert f"{link} is a symbolic link to " in capsys.readouterr().err


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").touch()
    told = folder_trouble(making_in(tmp_path / "file" / "a" / "b"))
    assert told == f"{tmp_path}/file is a file, not a folder"


def making_in(folder):
    with pytest.raises(OSError, match="file") as error:
        folder.mkdir(parents=True)
    return error.value


def test_a_link_in_a_circle_is_named(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(RunFolderError, match="a is a symbolic link to "):
        Same(Provider(), output_dir=tmp_path / "a")(range(3))
