"""Descriptions of DaskClusters, without Kubernetes and its packages."""

import pytest

from espnet3.errors import ConfigError
from espnet3.parallel.clusters import kube_spec
from espnet3.parallel.clusters.kube_spec import (
    amount_problems,
    check_spec,
    mount_problems,
    schema_problems,
    user_key,
    with_texts,
)

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
AMOUNTS = {"type": "object", "additionalProperties": TEXT}
CONTAINER = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": TEXT,
        "tty": {"type": "boolean"},
        "resources": {"type": "object", "properties": {"limits": AMOUNTS, "requests": AMOUNTS}},
        "port": {"x-kubernetes-int-or-string": True},
        "own": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {}},
    },
}
POD = {"type": "object", "properties": {"containers": {"type": "array", "items": CONTAINER}}}
SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "idleTimeout": NUMBER,
                "worker": {"type": "object", "properties": {"replicas": NUMBER, "spec": POD}},
            },
        }
    },
}
"""A part of the real one."""


def worker_with(container, **more):
    worker = {"replicas": 2, "spec": {"containers": [{"name": "worker", **container}]}}
    return {"kind": "DaskCluster", "metadata": {"name": "a"}, "spec": {"worker": worker, **more}}


def test_numbers_become_texts_in_amounts_sizes_and_variables_and_nowhere_else():
    pod = {
        "containers": [
            {
                "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 0.5, "memory": 2.0}},
                "env": [{"name": "OMP_NUM_THREADS", "value": 4}],
                "ports": [{"name": "http", "containerPort": 8787}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": 1}}],
        "initContainers": [{"resources": {"requests": {"cpu": 1}}}],
    }
    spec = with_texts({"scheduler": {"spec": pod}, "worker": {"replicas": 2, "spec": pod}})
    assert spec["worker"]["replicas"] == 2
    for each in (spec["scheduler"]["spec"], spec["worker"]["spec"]):
        container = each["containers"][0]
        limits = {"nvidia.com/gpu": "1", "cpu": "0.5", "memory": "2"}
        assert container["resources"]["limits"] == limits
        assert container["env"][0]["value"] == "4"
        assert container["ports"][0]["containerPort"] == 8787
        assert each["volumes"][0]["emptyDir"]["sizeLimit"] == "1"
        assert each["initContainers"][0]["resources"]["requests"]["cpu"] == "1"
    assert pod["containers"][0]["resources"]["limits"]["cpu"] == 0.5  # the user's stays


@pytest.mark.parametrize(
    ("container", "more", "path"),
    [
        ({"resources": {"limits": {"cpu": 1}}}, {}, "containers[0].resources.limits.cpu"),
        ({"resources": {"limit": {}}}, {}, "containers[0].resources.limit"),
        ({"tty": "yes"}, {}, "containers[0].tty"),
        ({"port": 1.5}, {}, "containers[0].port"),
        ({"name": None}, {}, "containers[0]"),
        ({}, {"idleTimeout": True}, "spec.idleTimeout"),
        ({}, {"workers": 1}, "spec.workers"),
    ],
)
def test_what_the_schema_refuses_is_named_by_its_path(container, more, path):
    (problem,) = schema_problems(worker_with(container, **more), SCHEMA)
    assert problem.path.endswith(path)


def test_what_the_schema_takes_is_no_problem():
    container = {
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "port": "http",
        "own": {"any": 1},
        "tty": None,
    }
    assert not list(schema_problems(worker_with(container, idleTimeout=0), SCHEMA))


@pytest.mark.parametrize(
    ("resources", "path", "fix"),
    [
        ({"limits": {"memory": "32GB"}}, "resources.limits.memory", "32Gi"),
        ({"limits": {"memory": "32 gb"}}, "resources.limits.memory", "32Gi"),
        ({"requests": {"cpu": "four"}}, "resources.requests.cpu", "500m"),
        ({"requests": {"nvidia.com/gpu": "1"}}, "resources.requests.nvidia.com/gpu", "limits: {"),
    ],
)
def test_amounts_that_no_pod_can_have_are_refused_with_what_to_write(resources, path, fix):
    (problem,) = amount_problems({"worker": [{"resources": resources}]})
    assert problem.path == f"worker[0].{path}"
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        ({"limits": {"nvidia.com/gpu": "0.5"}}, 'whole. Write: nvidia.com/gpu: "1"'),
        ({"limits": {"nvidia.com/gpu": "500m"}}, 'whole. Write: nvidia.com/gpu: "1"'),
        ({"limits": {"cpu": "-1"}}, "less than nothing"),
        ({"limits": {"cpu": "1500m"}, "requests": {"cpu": "2"}}, "more than resources.limits has"),
        ({"limits": {"memory": "1G"}, "requests": {"memory": "1Gi"}}, "more than resources.limits"),
    ],
)
def test_amounts_of_which_no_pod_could_be_made_are_refused(resources, told, monkeypatch):
    """The API server takes such a DaskCluster; only the operator sees the refusal of the pods."""
    monkeypatch.setattr(kube_spec, "shipped_schema", lambda: SCHEMA)
    with pytest.raises(ConfigError) as error:
        check_spec(worker_with({"resources": resources}), is_custom=False)
    assert told in str(error.value)
    assert "parallel.options.resources" in str(error.value)


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1500m", "memory": "1G"}},
        {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1", "memory": "1e9"}},
        {"requests": {"cpu": "2"}},
    ],
)
def test_requests_within_the_limits_are_taken(resources):
    assert list(amount_problems(worker_with({"resources": resources}))) == []


def test_a_mount_without_its_volume_is_refused():
    spec = worker_with({"volumeMounts": [{"name": "home", "mountPath": "/home"}]})
    (problem,) = mount_problems(spec)
    assert user_key(problem.path, is_custom=False) == "parallel.options.volume_mounts[0].name"
    assert "there are: none" in problem.fix
    spec["spec"]["worker"]["spec"]["volumes"] = [{"name": "home", "emptyDir": {}}]
    assert list(mount_problems(spec)) == []


def test_a_type_of_service_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setattr(kube_spec, "shipped_schema", lambda: None)
    spec = worker_with({}, scheduler={"service": {"type": "Nodeport"}})
    with pytest.raises(ConfigError, match=r"scheduler_service_type is 'Nodeport'.*NodePort"):
        check_spec(spec, is_custom=False)


@pytest.mark.parametrize("amount", ["1", "0.5", ".5", "500m", "32Gi", "1e3", "2G", "128974848"])
def test_amounts_of_kubernetes_are_taken(amount):
    resources = {"limits": {"memory": amount}, "requests": {"memory": amount}}
    assert not list(amount_problems({"resources": resources}))


def test_a_problem_is_told_by_the_option_that_it_comes_from(monkeypatch):
    monkeypatch.setattr(kube_spec, "shipped_schema", lambda: SCHEMA)
    spec = worker_with({"resources": {"limit": {}}})
    with pytest.raises(ConfigError, match=r"^parallel\.options\.resources\.limit is no") as error:
        check_spec(spec, is_custom=False)
    assert "'limits'" in error.value.fix
    with pytest.raises(ConfigError, match=r"custom_cluster_spec: spec\.worker\.spec\.containers"):
        check_spec(spec, is_custom=True)
    assert user_key("spec.idleTimeout", is_custom=False) == "parallel.options.idle_timeout"
