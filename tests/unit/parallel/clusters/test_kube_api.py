"""What refusals of the API server of Kubernetes mean, without it."""

import json

import pytest

from espnet3.parallel.clusters.kube_api import (
    FORWARDING,
    LOGS,
    NEEDED,
    Refusal,
    Right,
    advise,
    is_not_found,
    refusal_of,
    rules,
)

PODS = 'pods is forbidden: User "me" cannot list resource "pods" in API group "" in the namespace'
QUOTA = 'daskclusters "a" is forbidden: exceeded quota: gpus, requested: 8, used: 4, limited: 8'
WEBHOOK = 'admission webhook "images.example.org" denied the request: only our registry'


class Response:
    def __init__(self, code, text):
        self.status_code, self.text = code, text

    def json(self):
        return json.loads(self.text)


class ServerError(Exception):
    def __init__(self, message, response):
        super().__init__(message)
        self.response = response


class NotFoundError(Exception):
    pass


@pytest.mark.parametrize(
    ("code", "message", "word"),
    [
        (401, "Unauthorized", "login"),
        (403, PODS, "kubectl auth can-i list pods -n speech"),
        (403, QUOTA, "kubectl describe quota -n speech"),
        (403, WEBHOOK, "policy"),
        (400, WEBHOOK, "policy"),
        (403, "no", "can-i --list -n speech"),
        (404, 'namespaces "speech" not found', "parallel.options.namespace"),
        (404, 'daskclusters.kubernetes.dask.org "a" not found', "deleted"),
        (409, 'daskclusters.kubernetes.dask.org "a" already exists', "parallel.options.name"),
        (422, 'DaskCluster "a" is invalid: spec.worker', "parallel.options"),
        (500, "etcdserver: leader changed", "try again"),
    ],
)
def test_each_refusal_is_advised_by_its_own_cause(code, message, word):
    advice = advise(Refusal(code, message), "speech")
    assert word in advice
    assert "operator is not installed" not in advice


def test_the_operator_is_missing_only_if_a_cluster_could_not_be_created():
    advice = advise(Refusal(404, "404 page not found"), "speech", creates=True)
    assert "operator is not installed" in advice
    assert "helm install" in advice


def test_a_missing_right_is_told_as_a_line_of_a_role():
    line = '- {apiGroups: [""], resources: ["pods"], verbs: [list]}'
    assert line in advise(Refusal(403, PODS), "speech")
    assert rules(FORWARDING) == [
        '- {apiGroups: [""], resources: ["pods/portforward"], verbs: [get, create]}'
    ]


def test_rights_are_asked_for_as_the_api_server_wants_it():
    assert Right("", "pods/log", "get").attributes == {
        "resource": "pods", "subresource": "log", "verb": "get",
    }  # fmt: skip
    assert len({*NEEDED, *FORWARDING, *LOGS}) == 14


def test_the_answer_is_found_behind_errors_of_other_packages():
    error = RuntimeError("Are the CRDs installed?")
    error.__cause__ = ServerError("short", Response(403, json.dumps({"message": PODS})))
    assert refusal_of(error) == Refusal(403, PODS)
    proxy = ServerError("Client error '404 Not Found'", Response(404, "404 page not found\n"))
    assert refusal_of(proxy) == Refusal(404, "Client error '404 Not Found'")
    assert refusal_of(OSError("no route")) is None


def test_an_object_that_is_not_there_is_known_by_answer_or_by_name():
    assert is_not_found(ServerError("", Response(404, "")))
    assert is_not_found(NotFoundError("Could not find DaskCluster"))
    assert not is_not_found(ServerError("", Response(403, "")))
    assert not is_not_found(OSError())
