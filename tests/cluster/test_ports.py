"""What listens while a run goes on, and to whom it answers; told by `ss`, on real schedulers."""

import json
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from espnet3.parallel.clusters.tls import RunSecurity
from tests.cluster.harness import N_NODES, NETWORK
from tests.helpers.waiting import wait_until

# Cold: a process that was forked for a test has the environment of another in `/proc`.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.cold]

# A user of plain Dask, who says nothing of networks. Two workers in one job.
PROGRAM = """
import json, sys
from espnet3 import logs
from espnet3.parallel import get_client

if __name__ == "__main__":
    logs.make_visible()
    with get_client(json.loads(sys.argv[1])) as client:
        client.wait_for_workers(4, timeout=100)
        names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
        facts = client.run(lambda: [__import__("os").environ.get(name) for name in names])
        print(json.dumps([client.scheduler.address, facts]), flush=True)
        input()
"""
# Whether each port answers to a client: without TLS, without a certificate, with that of another
# run, and with the right one. A server of Dask speaks first.
PROBE = """
import json, socket, ssl, sys

def answers(host, port, how):
    with socket.create_connection((host, port), 60) as stream:
        try:
            if how != "plain":
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                if how != "nothing":
                    context.load_cert_chain(how + "/certificate.pem", how + "/key.pem")
                stream = context.wrap_socket(stream)
            else:
                stream.sendall(bytes(64))
            return stream.recv(1) != b""
        except (ssl.SSLError, ConnectionError):
            return False

places, ways = json.loads(sys.argv[1])
print(json.dumps([[answers(*place, how) for how in ways] for place in places]))
"""


@dataclass(frozen=True)
class Port:
    """A port on which a process of a run listens."""

    machine: int
    address: str
    number: int

    @property
    def is_on_loopback(self) -> bool:
        return self.address.startswith("127.") or self.address == "[::1]"


def listening(clients) -> list[Port]:
    """Return the ports of a run on all machines: of its driver, nannies and workers."""
    prefix = clients.cluster.prefix
    found = []
    for machine in range(N_NODES + 1) if prefix else [0]:
        where = [str(NETWORK), prefix, "exec", str(machine)] if prefix else []
        told = subprocess.run([*where, "ss", "-Hltnp"], stdout=subprocess.PIPE, check=True)
        for line in told.stdout.decode().splitlines():
            address, _, number = line.split()[3].rpartition(":")
            if any(is_of_run(pid, clients) for pid in re.findall(r"pid=(\d+)", line)):
                found.append(Port(machine, address, int(number)))
    return found


def is_of_run(pid: str, clients) -> bool:
    """Tell whether a process is Python, and has the variables of this scheduler's clients."""
    folder = Path("/proc", pid)
    name, value = next(iter(clients.cluster.variables.items()))
    try:
        is_python = (folder / "exe").resolve() == Path(sys.executable).resolve()
        return is_python and f"{name}={value}".encode() in (folder / "environ").read_bytes()
    except OSError:
        return False


@pytest.fixture
def run(request, tmp_path):
    """Return a function that starts the program; end it as a user would."""
    started = []

    def start(clients):
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        block = clients.parallel(2, processes=2, **clients.two_gpus)
        env = {key: value for key, value in clients.env.items() if "NUM_THREADS" not in key}
        settings = {"stdin": subprocess.PIPE, "cwd": tmp_path, "env": env}
        driver = clients.start(sys.executable, program, json.dumps(block), **settings)
        started.append(driver)
        line = driver.stdout.readline()
        assert line, driver.stderr.read()
        return driver, json.loads(line)

    yield start
    for driver in started:
        if driver.poll() is None:
            driver.kill()
            driver.communicate()


def assert_only_members_are_answered(clients, ports, tmp_path):
    (folder,) = (clients.folder / "jobs").glob(".espnet3-tls-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    stranger = RunSecurity(tmp_path / "stranger")
    stranger.write()
    ways = ["plain", "nothing", str(stranger.folder), str(folder)]
    places = [[port.address, port.number] for port in ports]
    code, told = clients.run(sys.executable, "-c", PROBE, json.dumps([places, ways]))
    assert code == 0, told
    answers = json.loads(told.splitlines()[-1])
    assert answers == [[False, False, False, True]] * len(ports)
    return folder


def end(driver, clients, folder, port) -> str:
    _, told = driver.communicate("\n", timeout=120)
    assert driver.returncode == 0, told
    assert not folder.exists()
    wait_until(lambda: port not in listening(clients), 60)
    assert re.search(r"ssh -L 8787:127\.0\.0\.1:\d+ \S+ ", told), told
    return told


def test_on_one_machine_nothing_listens_but_on_loopback(slurm, run, tmp_path):
    slurm.two_gpus = {"job_extra_directives": ["--gres=gpu:2"]}
    driver, (address, facts) = run(slurm)
    numbers = {int(each.rpartition(":")[2]) for each in [address, *facts]}
    ports = listening(slurm)
    assert numbers <= {port.number for port in ports}
    assert len(ports) >= 2 + 2 * 5  # driver and its dashboard; per job, two nannies, two workers
    assert [port for port in ports if not port.is_on_loopback] == []
    # Each of the two workers of a job sees another GPU first, and has half of the cores.
    assert sorted(map(tuple, facts.values())) == [("0,1", "4")] * 2 + [("1,0", "4")] * 2

    assert {each.partition(":")[0] for each in [address, *facts]} == {"tls"}
    dask = [port for port in ports if port.number in numbers]
    assert len(dask) == 5
    folder = assert_only_members_are_answered(slurm, dask, tmp_path)
    told = end(driver, slurm, folder, dask[0])
    port = int(re.search(r"127\.0\.0\.1:(\d+) ", told)[1])
    assert port in {each.number for each in ports}
    assert slurm.left_behind() == {}


@pytest.mark.parametrize("name", ["slurm_net", "sge"])
def test_across_a_network_only_tls_listens_and_only_where_it_must(name, run, tmp_path, request):
    clients = request.getfixturevalue(name)
    directives = {"slurm_net": "--gres=gpu:2", "sge": "-l gpu=2"}
    clients.two_gpus = {"job_extra_directives": [directives[name]]}
    if name == "sge":  # which sets nothing: workers lock the GPUs that they take
        clients.two_gpus["job_script_prologue"] = ["export ESPNET3_NODE_GPUS=2"]
    driver, (_, facts) = run(clients)
    ports = listening(clients)
    outside = [port for port in ports if not port.is_on_loopback]
    assert {port.address.partition(".")[0] for port in outside} == {"10"}  # never 0.0.0.0 or [::]
    assert len(outside) == 1 + 2 * 4  # the driver's; per job, two nannies and two workers
    assert len({port.machine for port in outside}) == 3
    seen = sorted(tuple(each) for each in facts.values())
    ours = [("0", "4"), ("1", "4")] if name == "sge" else [("0,1", "4"), ("1,0", "4")]
    assert seen == sorted(ours * 2)

    folder = assert_only_members_are_answered(clients, outside, tmp_path)
    told = end(driver, clients, folder, outside[0])
    assert "Workers connect to this program at 10." in told
    assert ("each worker takes free ones" in told) is (name == "sge")
    assert clients.left_behind() == {}
