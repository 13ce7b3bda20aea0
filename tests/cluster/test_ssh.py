"""Workers on machines that one can log in to: a real sshd, on this machine."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.errors import ConfigError, ResourceError
from espnet3.parallel import BaseRunner, get_client, use_parallel
from tests.helpers.providers import Provider
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


class Where(BaseRunner):
    @staticmethod
    def forward(idx, meeting, n_workers):
        (Path(meeting) / str(os.getpid())).touch()
        wait_until(lambda: len(os.listdir(meeting)) == n_workers, 120)
        return {
            "folder": os.getcwd(),
            "pid": os.getpid(),
            "rank": os.environ["LOCAL_RANK"],
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "by": os.environ.get("SSH_CONNECTION", "").split()[-1:],
        }


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """Start an sshd for one key, on loopback; yield what asyncssh needs to log in."""
    program = shutil.which("sshd") or "/usr/sbin/sshd"
    if not Path(program).exists() or shutil.which("ssh-keygen") is None:
        pytest.skip("sshd is not installed; run tests/cluster/install.sh")
    if os.geteuid() != 0:
        pytest.skip("starting sshd needs root")
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/authorized\nPidFile {folder}/pid\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 50\n"
    )
    (folder / "known").write_text(
        f"[localhost]:{port},[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    command = [program, "-D", "-e", "-f", str(folder / "config")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        wait_until(lambda: (folder / "pid").exists(), 60)
        yield {
            "port": port,
            "username": getpass.getuser(),
            "client_keys": [str(folder / "user")],
            "known_hosts": str(folder / "known"),
            "config": [],
        }
    finally:
        process.terminate()
        process.wait(30)


def parallel(sshd, n_workers=3, hosts=("localhost", "localhost", "127.0.0.1"), **options):
    options = {"hosts": list(hosts), "connect_options": sshd, **options}
    return {"env": "ssh", "n_workers": n_workers, "options": options}


def test_workers_are_on_the_hosts_in_the_folder_of_the_driver_and_talk_tls(
    sshd, tmp_path, monkeypatch
):
    folder = tmp_path / "it's a recipe"
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    folder.mkdir()
    monkeypatch.chdir(folder)
    with use_parallel(parallel(sshd)):
        found = Where(Provider(meeting=str(meeting), n_workers=3))(range(20))
        workers = {each["pid"]: each for each in found}
        assert {each["folder"] for each in found} == {str(folder)}
        assert {tuple(each["by"]) for each in found} == {(str(sshd["port"]),)}
        # Two workers on localhost, one on 127.0.0.1: for each a GPU of its own.
        assert sorted(each["rank"] for each in workers.values()) == ["0", "0", "1"]
        with get_client() as client:
            assert client.scheduler.address.startswith("tls://127.0.0.1:")
            assert all(address.startswith("tls://127.0.0.1:") for address in client.nthreads())
            (certificates,) = folder.glob(".espnet3-tls-*")
            assert certificates.stat().st_mode & 0o777 == 0o700
            pids = [*client.run(os.getpid).values(), client.run_on_scheduler(os.getpid)]
            assert_loopback_only(pids)
    assert not list(folder.iterdir())
    wait_until(lambda: not any(is_running(pid) for pid in pids), 60)


@pytest.mark.parametrize("is_given", [True, False])
def test_paths_may_have_any_letters(sshd, awkward, monkeypatch, is_given):
    folder = awkward / "$HOME `touch x` (1)"
    scratch, meeting = awkward / "it's scratch", awkward / "meeting"
    for each in (folder, scratch, meeting):
        each.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(folder)
    options = {"remote_python": str(python)} if is_given else {}
    if not is_given:
        monkeypatch.setattr(sys, "executable", str(python))
    options["worker_options"] = {"local_directory": str(scratch)}
    with use_parallel(parallel(sshd, n_workers=2, **options)):
        found = Where(Provider(meeting=str(meeting), n_workers=2))(range(8))
    assert {each["folder"] for each in found} == {str(folder)}
    assert [path.name for path in folder.iterdir()] == ["python"]


def assert_loopback_only(pids):
    told = subprocess.run(["ss", "-ltnpH"], check=True, capture_output=True, text=True).stdout
    lines = [line for line in told.splitlines() if any(f"pid={pid}," in line for pid in pids)]
    assert lines
    assert all(line.split()[3].startswith("127.0.0.1:") for line in lines), lines


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


DRIVER = """
import json, os, sys, time
from espnet3.parallel import get_client
with get_client(json.loads(sys.argv[1])) as client:
    client.wait_for_workers(2, timeout=60)  # it is there as soon as one worker is
    pids = [*client.run(os.getpid).values(), client.run_on_scheduler(os.getpid)]
    print(json.dumps(pids), flush=True)
    time.sleep(600)
"""


def test_nothing_is_left_on_the_hosts_when_the_driver_is_killed(sshd, tmp_path):
    import json

    command = [sys.executable, "-c", DRIVER, json.dumps(parallel(sshd, n_workers=2))]
    path = str(Path(__file__).parents[2])
    driver = subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
    )
    pids = json.loads(driver.stdout.readline())
    assert len(pids) == 3
    assert all(is_running(pid) for pid in pids)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    wait_until(lambda: not any(is_running(pid) for pid in pids), 60)


def refused(block):
    with pytest.raises((ConfigError, ResourceError)) as caught, get_client(block):
        pass
    return str(caught.value)


def test_what_is_wrong_with_a_host_is_told_with_what_to_do(sshd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)], check=True)
    told = refused(parallel({**sshd, "client_keys": [str(stranger)]}))
    assert "Make this work without a question: ssh localhost true" in told
    (tmp_path / "known").touch()
    told = refused(parallel({**sshd, "known_hosts": str(tmp_path / "known")}))
    assert "Log in once and accept it: ssh localhost true" in told
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        told = refused(parallel({**sshd, "port": free.getsockname()[1]}))
    assert "See that this works: ssh 127.0.0.1 true" in told
    told = refused(parallel(sshd, remote_python="/no/such/python"))
    assert "remote_python: /path/to/python" in told
    assert "/no/such/python: not found" in told
    assert not list(tmp_path.glob(".espnet3-tls*"))


def test_wrong_options_are_told_with_what_to_write(sshd):
    assert "Write: options: {hosts: [head, node1" in refused({"env": "ssh"})
    assert "hosts is 'a', not a list" in refused(parallel(sshd) | {"options": {"hosts": "a"}})
    assert "write: hosts: [a, a]" in refused(parallel(sshd, hosts=["a"]))
    assert "Did you mean 'hosts'?" in refused({"env": "ssh", "options": {"host": ["a", "b"]}})


def test_hosts_without_a_worker_are_warned_of(sshd, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    hosts = ["localhost", "localhost", "127.0.0.1"]
    with get_client(parallel(sshd, n_workers=1, hosts=hosts)) as client:
        assert len(client.nthreads()) == 1
    assert "127.0.0.1 will stay idle. To use all, set parallel.n_workers: 2" in caplog.text
