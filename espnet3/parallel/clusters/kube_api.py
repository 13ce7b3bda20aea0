"""Questions to the API server of Kubernetes, the rights that they need, and its refusals."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from espnet3.text import folded

T = TypeVar("T")
ASK_SECONDS = 15.0
_N_TRIES = 3
_N_PORTS = 10
_RETRY_SECONDS = 0.5
_N_LINES = 15
_TRANSIENT = (429, 500, 502, 503, 504)
"""Answers of a busy API server, or of one whose leader is being chosen."""
DASK_GROUP = "kubernetes.dask.org"
INSTALL = (
    "helm install --repo https://helm.dask.org --create-namespace -n dask-operator "
    "--generate-name dask-kubernetes-operator"
)
_PAGE = "docs/clusters/kube.md has the whole Role"
_POLICIES = ("admission webhook", "denied the request", "violates PodSecurity")
_CANNOT = re.compile(r'cannot (\S+) resource "([^"]+)" in API group "([^"]*)"')


class Right(NamedTuple):
    """One verb on one kind of objects."""

    group: str
    resource: str
    verb: str

    @property
    def attributes(self) -> dict[str, str]:
        """The right as the API server is asked for it."""
        resource, _, part = self.resource.partition("/")
        known = {"group": self.group, "resource": resource, "subresource": part, "verb": self.verb}
        return {name: value for name, value in known.items() if value}

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


def _rights(group: str, resource: str, *verbs: str) -> tuple[Right, ...]:
    return tuple(Right(group, resource, verb) for verb in verbs)


NEEDED = (
    *_rights(DASK_GROUP, "daskclusters", "get", "list", "watch", "create", "delete"),
    *_rights("", "pods", "get", "list", "watch"),
    *_rights("", "services", "get", "list", "watch"),
)
# A websocket is opened by GET; since Kubernetes 1.35, `create` is asked for as well.
FORWARDING = _rights("", "pods/portforward", "get", "create")
"""Needed where this program runs outside of the cluster."""
LOGS = _rights("", "pods/log", "get")
"""Without it a run works, but cannot tell what a pod said before it crashed."""


def rules(rights: Iterable[Right]) -> list[str]:
    """Return the lines that give these rights, for the `rules` of a Role."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    return [
        f'- {{apiGroups: ["{group}"], resources: ["{resource}"], verbs: [{", ".join(each)}]}}'
        for (group, resource), each in verbs.items()
    ]


class Refusal(NamedTuple):
    """Error that the API server answered, with its HTTP status."""

    code: int
    message: str


def refusal_of(error: BaseException) -> Refusal | None:
    """Return the answer that an error, or one of its causes, is about."""
    for each in chain(error):
        response = getattr(each, "response", None)
        code = getattr(response, "status_code", None)
        if code is not None:
            return Refusal(int(code), folded(_message(response) or each))
    return None


def _message(response: Any) -> str:
    try:
        return str(response.json()["message"])
    except Exception:  # a page of a proxy, or a stream that nobody has read
        return ""


def chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, the last one first."""
    found: list[BaseException] = []
    each: BaseException | None = error
    # Contexts of exceptions may form a circle.
    while each is not None and each not in found:
        found.append(each)
        each = each.__cause__ or each.__context__
    return found


def advise(refusal: Refusal, namespace: str, *, creates: bool = False) -> str:
    """Return what an answer of the API server means, and what to do about it.

    Args:
        refusal: the answer.
        namespace: where; empty for that of the kubeconfig.
        creates: whether the question was to create a DaskCluster.
    """
    code, message = refusal
    place = f" -n {namespace}" if namespace else ""
    if code == 401:
        return (
            "The cluster does not accept your login, or that has expired. Log in as your cluster "
            f"asks, until this works: kubectl get pods{place}"
        )
    # Quotas and policies answer with 403 as well, so they come before missing rights.
    if "exceeded quota" in message:
        return (
            f"The quota of the namespace is used up. See: kubectl describe quota{place}; ask for "
            "less in parallel.options.resources, or fewer workers in parallel.n_workers"
        )
    if any(word in message for word in _POLICIES):
        return (
            "A policy of the cluster refuses it; change parallel.options as its words say, or ask "
            "an admin"
        )
    if code == 403:
        return _advise_right(message, place)
    if code == 404 and re.search(r'namespaces? "[^"]*" not found', message):
        return "Choose one of: kubectl get namespaces; and write it in parallel.options.namespace"
    if code == 404 and creates:
        return f"The Dask operator is not installed in that cluster; ask an admin for: {INSTALL}"
    if code == 404:
        return "It was deleted meanwhile, by a user or by the operator; run the same command again"
    if code == 409:
        return (
            "There is one of that name. Choose another parallel.options.name, or delete it: "
            f"kubectl get daskclusters{place}"
        )
    if code in (400, 422):
        return "Mend what it names in parallel.options, or in custom_cluster_spec"
    return f"The API server itself has trouble. See: kubectl get pods{place}; then try again"


def _advise_right(message: str, place: str) -> str:
    found = _CANNOT.search(message)
    if found is None:
        return f"You lack a right. See what you may: kubectl auth can-i --list{place}; {_PAGE}"
    right = Right(found[3], found[2], found[1])
    full = f"{right.resource}.{right.group}" if right.group else right.resource
    return (
        f"You lack a right; ask for this line in your Role: {rules([right])[0]} ({_PAGE}). See: "
        f"kubectl auth can-i {right.verb} {full}{place}"
    )


class KubeApi:
    """Asks the API server about one cluster, from a thread of its own and with deadlines.

    dask-kubernetes asks without any, and an API server that is away never answers.

    Args:
        cluster: the name of the DaskCluster.
        namespace: where it is; None for that of the kubeconfig.
    """

    def __init__(self, cluster: str, namespace: str | None) -> None:
        self.cluster = cluster
        self._namespace = namespace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kube", daemon=True)
        self._thread.start()
        self._forwards: list[Any] = []

    @property
    def namespace(self) -> str:
        """Namespace of the cluster, as far as known; empty until the first answer."""
        return self._namespace or ""

    def close(self) -> None:
        """End the thread, and with it forwarded ports; what is being asked is given up."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(ASK_SECONDS)
        # A loop that still runs must not be closed, which would raise.
        if not self._thread.is_alive():
            self._loop.close()

    def _stop(self) -> None:
        for server in [server for forward in self._forwards for server in forward.servers]:
            server.close()
        self._loop.stop()

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the cluster."""
        params = {"labelSelector": f"dask.org/cluster-name={self.cluster}"}
        return list(self._ask(lambda: self._call("GET", "pods", params=params))["items"])

    def read_cluster(self) -> dict[str, Any] | None:
        """Return the DaskCluster; None if there is none."""
        try:
            return dict(self._ask(lambda: self._call_dask("GET", f"daskclusters/{self.cluster}")))
        except Exception as error:
            if is_not_found(error):
                return None
            raise

    def delete_cluster(self) -> None:
        """Delete the DaskCluster, with which its pods go; nothing if there is none."""
        try:
            self._ask(lambda: self._call_dask("DELETE", f"daskclusters/{self.cluster}"))
        except Exception as error:
            if not is_not_found(error):
                raise

    def try_to_create(self, spec: Mapping[str, Any]) -> None:
        """Let the API server judge a DaskCluster by its own schema; nothing is created.

        Raises:
            Exception: with the answer, if it refuses.
        """
        # Strict: else the API server drops unknown fields without a word.
        params = {"dryRun": "All", "fieldValidation": "Strict"}
        self._ask(lambda: self._call_dask("POST", "daskclusters", params=params, body=spec))

    def missing(self, rights: Iterable[Right]) -> list[Right]:
        """Return the rights that the user does not have in the namespace."""
        wanted = list(rights)

        async def ask() -> list[bool]:
            await self._api()  # once: if there is no login, each question would say so
            # All are awaited: raising at the first would leave the other questions running.
            answers = await asyncio.gather(*map(self._is_allowed, wanted), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            return [bool(answer) for answer in answers]

        allowed = self._ask(ask)
        return [right for right, is_allowed in zip(wanted, allowed, strict=True) if not is_allowed]

    async def _is_allowed(self, right: Right) -> bool:
        version = "authorization.k8s.io/v1"
        attributes = {**right.attributes, "namespace": (await self._api()).namespace}
        review = {
            "apiVersion": version,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self._call(
            "POST", "selfsubjectaccessreviews", version=version, body=review, is_in_namespace=False
        )
        return bool(answer["status"]["allowed"])

    def last_lines(self, pod: str, *, previous: bool) -> list[str]:
        """Return the end of a pod's log, of its last container if `previous`; none if refused."""
        params = {"tailLines": str(_N_LINES), "previous": str(previous).lower()}

        async def ask() -> str:
            api = await self._api()
            url = f"pods/{pod}/log"
            async with api.call_api("GET", url=url, namespace=api.namespace, params=params) as got:
                return str(got.text)

        with suppress(Exception):  # a right that one need not have, or a node that does not answer
            return self._ask(ask).splitlines()[-_N_LINES:]
        return []

    def forward(self, service: str, port: int) -> int:
        """Forward a port of a service to one of this machine's loopback, until `close`.

        dask-kubernetes does so in a thread that it cannot end, and waits for minutes if the port
        that it drew is taken meanwhile.
        """

        async def ask() -> int:
            from kr8s.asyncio.objects import Service

            api = await self._api()
            found = await Service.get(service, namespace=api.namespace, api=api)
            n_tried = 0
            while True:
                n_tried += 1
                forward: Any = found.portforward(port, "auto")
                try:
                    local = int(await forward.__aenter__())
                except OSError:  # another program was quicker
                    if n_tried == _N_PORTS:
                        raise
                    continue
                self._forwards.append(forward)
                return local

        return self._ask(ask)

    def try_to_forward(self, pod: str, port: int) -> None:
        """Open a connection to a pod's port through the API server, and close it.

        Raises:
            Exception: with the answer, if it refuses; kr8s itself would try for ever.
        """

        async def ask() -> None:
            api = await self._api()
            url, params = f"pods/{pod}/portforward", {"ports": str(port)}
            async with api.open_websocket(url=url, namespace=api.namespace, params=params):
                pass

        self._ask(ask)

    def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def answer() -> T:
            async with asyncio.timeout(ASK_SECONDS):
                return await question()

        try:
            # The inner deadline ends the question; this one is for a loop that hangs itself.
            return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(2 * ASK_SECONDS)
        except (TimeoutError, CancelledError) as error:
            raise TimeoutError(f"the API server did not answer within {ASK_SECONDS:g} s") from error

    async def _api(self) -> Any:
        from kr8s.asyncio import api

        # kr8s keeps one for each thread and loop, with the login of the kubeconfig.
        found = await api(namespace=self._namespace) if self._namespace else await api()
        self._namespace = str(found.namespace)
        return found

    async def _call_dask(self, method: str, url: str, **more: Any) -> Any:
        return await self._call(method, url, version=f"{DASK_GROUP}/v1", **more)

    async def _call(
        self,
        method: str,
        url: str,
        *,
        version: str = "v1",
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        is_in_namespace: bool = True,
    ) -> Any:
        api = await self._api()
        more = {} if body is None else {"content": json.dumps(body)}
        namespace = api.namespace if is_in_namespace else None
        n_tried = 0
        while True:
            n_tried += 1
            try:
                async with api.call_api(
                    method, version=version, url=url, namespace=namespace, params=params, **more
                ) as response:
                    return response.json()
            except Exception as error:
                refusal = refusal_of(error)
                if refusal is None or refusal.code not in _TRANSIENT or n_tried == _N_TRIES:
                    raise
            await asyncio.sleep(_RETRY_SECONDS * n_tried)


def is_not_found(error: BaseException) -> bool:
    """Tell whether an error means that an object is not there."""
    refusal = refusal_of(error)
    if refusal is not None:
        return refusal.code == 404
    return any(type(each).__name__ == "NotFoundError" for each in chain(error))
