"""Kubernetes: the real dask-kubernetes, against a stand-in for the API server and the operator."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.extras import install_extras
from tests.helpers.waiting import wait_until

# Patient: what is missing may have to be installed first.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python():
    """Return an interpreter that has dask-kubernetes; nothing else needs it."""
    return install_extras("kube")


@contextmanager
def kubernetes(folder: Path, mode: str):
    """Start the stand-in and yield the variables of its clients."""
    api = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.kube.api", str(folder), mode], cwd=ROOT
    )
    try:
        wait_until(lambda: (folder / "port").exists(), 60)
        server = f"http://127.0.0.1:{(folder / 'port').read_text()}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "stand-in", "cluster": {"server": server}}],
            "users": [{"name": "me", "user": {"token": "secret"}}],
            "contexts": [{"name": "c", "context": {"cluster": "stand-in", "user": "me"}}],
            "current-context": "c",
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        yield {"KUBECONFIG": str(folder / "kubeconfig")}
    finally:
        api.terminate()
        api.wait(60)


def start(python, folder, variables, *, start_timeout=120, **options):
    options = {"namespace": "speech", "image": "registry/espnet3:1", **options}
    block = {"env": "kube", "n_workers": 2, "start_timeout": start_timeout, "options": options}
    return subprocess.Popen(
        [python, "-m", "tests.cluster.kube.job", json.dumps(block), str(folder / "out")],
        env={**os.environ, **variables},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*args, **kwargs):
    process = start(*args, **kwargs)
    stdout, stderr = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def test_workers_are_pods_and_the_cluster_is_deleted_at_the_end(python, tmp_path):
    with kubernetes(tmp_path, "works") as variables:
        gpu = {"limits": {"nvidia.com/gpu": 1}}
        volumes = {
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "volume_mounts": [{"name": "data", "mountPath": "/data"}],
        }
        process = run(python, tmp_path, variables, resources=gpu, env={"COLOR": "red"}, **volumes)
        assert process.returncode == 0, process.stderr
        found = [json.loads(line) for line in process.stdout.splitlines() if line]
        assert [each["idx"] for each in found] == list(range(20))
        assert all("-default-worker-" in each["pod"] for each in found)
        assert {each["color"] for each in found} == {"red"}
        assert {each["folder"] for each in found} == {str(ROOT)}
        created = json.loads((tmp_path / "created.json").read_text())
        assert (tmp_path / "deleted").read_text() == created["metadata"]["name"]
    worker = created["spec"]["worker"]
    container = worker["spec"]["containers"][0]
    scheduler = created["spec"]["scheduler"]
    assert worker["replicas"] == 2
    assert container["args"][:2] == ["dask", "worker"]
    assert container["resources"] == gpu
    assert container["volumeMounts"][0]["mountPath"] == "/data"
    assert worker["spec"]["volumes"][0]["name"] == "data"
    assert scheduler["spec"]["containers"][0]["args"][:2] == ["dask", "scheduler"]
    assert not scheduler["spec"]["containers"][0]["resources"]  # or it would take a GPU
    assert scheduler["service"]["type"] == "ClusterIP"
    assert created["spec"]["idleTimeout"] == 3600


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("no-operator-installed", "The Dask operator is not installed in that cluster"),
        ("forbidden", "kubectl auth can-i create daskclusters.kubernetes.dask.org -n speech"),
        ("no-operator-running", "The operator is installed but does nothing"),
        ("no-image", 'cannot start. .*ImagePullBackOff Back-off pulling image "no:1"'),
        ("no-room", "did not start within .*40 s.*Unschedulable: 0/4 nodes: Insufficient nvidia"),
    ],
)
def test_what_stands_in_the_way_is_told_and_nothing_is_left(python, tmp_path, mode, told):
    with kubernetes(tmp_path, mode) as variables:
        # All but the last know sooner; a machine with much else to do takes its time.
        seconds = 40 if mode == "no-room" else 250
        process = run(python, tmp_path, variables, start_timeout=seconds, resource_timeout=5)
        assert process.returncode == 1, process.stdout
        assert re.search(f"ResourceError: .*{told}", process.stderr), process.stderr
        assert "Traceback" not in process.stderr
        assert (tmp_path / "created.json").exists() == (tmp_path / "deleted").exists()


def test_without_a_kubeconfig_it_says_where_to_look(python, tmp_path):
    process = run(python, tmp_path, {"KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)})
    assert process.returncode == 1
    assert "kubectl get pods -n speech" in process.stderr
    assert "$KUBECONFIG" in process.stderr


def test_ctrl_c_while_pods_wait_deletes_the_cluster(python, tmp_path):
    with kubernetes(tmp_path, "no-room") as variables:
        driver = start(python, tmp_path, variables)
        wait_until((tmp_path / "created.json").exists, 120)
        driver.send_signal(signal.SIGINT)
        _, told = driver.communicate(timeout=120)
        assert driver.returncode == 130, told
        assert "Traceback" not in told
        assert (tmp_path / "deleted").exists()
