"""A scheduler that the user gives the address of: found, or told within seconds what is wrong."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from espnet3.errors import ConfigError, ResourceError
from espnet3.parallel import BaseRunner, get_client, use_parallel
from espnet3.parallel.clusters.tls import RunSecurity
from tests.helpers.providers import Provider
from tests.helpers.waiting import wait_until


class Pid(BaseRunner):
    @staticmethod
    def forward(idx):
        return os.getpid()


def refused(**options):
    error = pytest.raises((ConfigError, ResourceError))
    with error as caught, get_client({"env": "dask", "options": options}):
        pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "Write: options: {address: 'tcp://host:8786'}"),
        ({"addres": "tcp://a:1"}, "Did you mean 'address'?"),
        ({"address": "head"}, "Write protocol, host and port"),
        ({"address": "http://head:8787"}, "Write protocol, host and port"),
        ({"address": "tcp://a:1", "tls_cert": __file__}, "Write: address: 'tls://a:1'"),
        ({"address": "tls://a:1", "tls_cert": "no.pem"}, "tls_cert is 'no.pem', and there is no"),
        ({"address": "tls://a:1"}, "needs certificates. Add to options: tls_ca_file: ca.pem"),
    ],
)
def test_wrong_options_are_told_with_what_to_write(options, told):
    assert told in refused(**options)


def test_nobody_there_is_told_within_seconds():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    told = refused(address=address, timeout=5)
    assert f"'tcp://{address}', but no scheduler answered there within 5 s" in told
    assert "Start one (dask scheduler, and dask worker ADDRESS" in told


def test_a_server_of_another_kind_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        told = refused(address=f"tcp://127.0.0.1:{server.getsockname()[1]}", timeout=5)
    assert "no scheduler answered there" in told


def test_the_address_of_a_worker_is_told(dask_address):
    with get_client(dask_address) as client:
        worker = next(iter(client.nthreads()))
    assert "where a Dask Worker answers, not a scheduler" in refused(address=worker)


def test_a_run_is_planned_for_the_workers_that_are_there(dask_address, tmp_path):
    with use_parallel({"env": "dask", "options": {"address": dask_address}}):
        Pid(Provider(), output_dir=tmp_path)(range(1000))
    n_shards = len(list(tmp_path.glob("split.*")))
    assert n_shards == 2 * 16  # two workers, though n_workers is 1


@contextmanager
def tls_scheduler(folder, security):
    """Start a scheduler and a worker with TLS, as a user would in a shell."""
    files = security.get_tls_config_for_role("scheduler")
    words = [word for key in ("ca_file", "cert", "key") for word in (f"--tls-{key}", files[key])]
    words = [word.replace("_", "-") if word.startswith("--") else word for word in words]
    file = folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    dask = [sys.executable, "-m", "dask"]
    scheduler = [*dask, "scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", "0"]
    worker = [*dask, "worker", "--protocol", "tls", "--scheduler-file", str(file), "--no-dashboard"]
    processes = [
        subprocess.Popen(
            [*scheduler, "--no-dashboard", "--scheduler-file", str(file), *words], **quiet
        ),
        subprocess.Popen([*worker, *words], **quiet),
    ]
    try:
        wait_until(lambda: file.exists() and file.stat().st_size > 0, seconds=60)
        yield json.loads(file.read_text())["address"]
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)


def test_a_scheduler_with_tls_is_reached_with_its_certificates_only(tmp_path):
    ours, others = RunSecurity(tmp_path, "our own"), RunSecurity(tmp_path, "others")
    ours.write()
    others.write()

    def files(security):
        found = security.get_tls_config_for_role("client")
        return {f"tls_{key}": found[key] for key in ("ca_file", "cert", "key")}

    with tls_scheduler(tmp_path, ours) as address:
        options = {"address": address, **files(ours)}
        with use_parallel({"env": "dask", "options": options}):
            assert len(set(Pid(Provider())(range(10)))) == 1
        told = refused(address=address, timeout=5, **files(others))
        assert "Give certificates that the scheduler accepts" in told
        plain = refused(address=address.replace("tls://", "tcp://"), timeout=5)
        assert "if it was started with TLS, write tls:// and its certificates" in plain
