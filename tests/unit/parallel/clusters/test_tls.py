"""Certificates of a run: private, quoted for shells, gone with the cluster."""

import asyncio
import os
import shlex
import ssl
import stat
import subprocess
import sys
from contextlib import suppress

import pytest
from distributed import Scheduler, Security
from distributed.core import connect

from espnet3.errors import ResourceError
from espnet3.parallel.clusters.tls import RunSecurity, removing_certificates


def test_only_the_user_can_read_them(tmp_path):
    security = RunSecurity(tmp_path / "logs")
    assert not (tmp_path / "logs").exists()
    old = os.umask(0)
    try:
        security.write()
    finally:
        os.umask(old)
    assert stat.S_IMODE(security.folder.stat().st_mode) == 0o700
    files = list(security.folder.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    security.remove()
    assert not list((tmp_path / "logs").iterdir())


def test_paths_for_the_job_script_are_quoted(awkward):
    security = RunSecurity(awkward)
    quoted = security.get_tls_config_for_role("worker")["key"]
    assert shlex.split(quoted) == [security.get_tls_config_for_role("scheduler")["key"]]


async def _connect(security: Security, to: str) -> None:
    comm = await connect(to, timeout=20, **security.get_connection_args("client"))
    await comm.close()


def test_who_has_not_the_certificate_is_refused(tmp_path):
    ours, theirs = RunSecurity(tmp_path / "ours"), RunSecurity(tmp_path / "theirs")
    ours.write()
    theirs.write()

    async def run():
        async with Scheduler(
            host="127.0.0.1", port=0, protocol="tls://", security=ours, dashboard=False
        ) as scheduler:
            await _connect(ours, scheduler.address)
            with pytest.raises(OSError, match="certificate"):
                await _connect(theirs, scheduler.address)
            with pytest.raises((OSError, TypeError, RuntimeError)):
                await _connect(Security(), scheduler.address)
            plain = scheduler.address.replace("tls://", "tcp://")
            with pytest.raises(OSError):
                await _connect(Security(), plain)

    asyncio.run(run())


def test_a_client_that_shows_nothing_is_refused(tmp_path):
    security = RunSecurity(tmp_path)
    security.write()
    server = security.get_listen_args("scheduler")["ssl_context"]
    assert server.verify_mode is ssl.CERT_REQUIRED


def test_a_full_or_closed_folder_is_told_with_what_to_set(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=r"shared_temp_directory: /path/to/folder"):
        RunSecurity(tmp_path / "file").write()


def test_those_of_a_killed_driver_are_removed_by_the_next(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; "
        "from espnet3.parallel.clusters.tls import RunSecurity; "
        "RunSecurity(Path(sys.argv[1])).write(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60)
    (left,) = tmp_path.iterdir()
    running = RunSecurity(tmp_path)
    running.write()
    RunSecurity(tmp_path).write()
    assert not left.exists()
    assert running.folder.exists()


class Cluster:
    """A cluster class that can fail at either end."""

    def __init__(self, security=None, fails=""):
        self.security, self.fails = security, fails
        assert security.folder.exists()
        if fails == "init":
            raise ValueError("no")

    async def _close(self):
        assert self.security.folder.exists()  # workers may still need them
        if self.fails == "close":
            raise ValueError("no")


@pytest.mark.parametrize("fails", ["", "init", "close"])
def test_they_are_there_while_the_cluster_is_open(tmp_path, fails):
    security = RunSecurity(tmp_path)
    with suppress(ValueError):
        cluster = removing_certificates(Cluster)(security=security, fails=fails)
        asyncio.run(cluster._close())
    assert not list(tmp_path.iterdir())


def test_they_are_removed_at_exit_if_nobody_closes_the_cluster(tmp_path):
    program = (
        "import sys; from pathlib import Path; "
        "from espnet3.parallel.clusters.tls import RunSecurity, removing_certificates; "
        "C = type('C', (), {'__init__': lambda self, security: None}); "
        "c = removing_certificates(C)(security=RunSecurity(Path(sys.argv[1]))); "
        "assert list(Path(sys.argv[1]).iterdir())"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert not list(tmp_path.iterdir())
