"""A stand-in for the API server of Kubernetes, the Dask operator and the kubelet.

Run as a program: `python -m tests.cluster.kube.api FOLDER MODE`. It answers the calls that
dask-kubernetes and we make, in the words of the real one; runs what the description of a cluster
says as processes of this machine, and forwards ports. `port`, `log` and `pids.json` are in FOLDER.
MODE is what is wrong; see `MODES`. Like the real one, it holds a DaskCluster against the schema of
its CRD; a container whose process was killed is started again, with a note of its end; and a pod
that is deleted, or evicted, is Terminating for some seconds while its Deployment has made another.
While a file `away` is in FOLDER, it is a server that is being restarted: no connection lives.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from math import inf
from pathlib import Path

import yaml
from aiohttp import WSMsgType, web

MODES = {
    "works": "nothing",
    "stays-pending": "two handlers of the operator race, and status.phase is never Running (#968)",
    "no-operator-installed": "the group kubernetes.dask.org is unknown",
    "no-operator-running": "nobody looks at a DaskCluster",
    "no-pods": "a quota refuses all pods",
    "no-namespace": "the namespace does not exist",
    "forbidden": "daskclusters may not be created, as an access review says",
    "no-pods-right": "pods may not be listed, and an access review says otherwise",
    "no-forward": "ports may not be forwarded, as an access review says",
    "no-forward-unsaid": "ports may not be forwarded, and an access review says otherwise",
    "no-image": "no image can be pulled",
    "no-room": "no pod fits on a node",
    "workers-no-room": "the scheduler has its node, but no worker",
    "workers-no-image": "the image of workers cannot be pulled",
    "workers-crash": "workers end at once",
    "no-operator-at-end": "the operator is gone when the cluster is deleted: a finalizer stays",
    "silent-at-end": "the API server does not answer when the cluster is deleted",
    "vanishes": "somebody deletes the cluster while it starts",
}
NAMESPACE = "speech"
CLUSTERS = f"/apis/kubernetes.dask.org/v1/namespaces/{NAMESPACE}/daskclusters"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CRD = "operator/deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml"
GRACE_SECONDS = 20.0
NO_ROOM = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
CRASH = "ModuleNotFoundError: No module named 'espnet3'"


class Pod:
    """A pod: the process of its container, and how that ended before."""

    def __init__(self, api: "Api", name: str, component: str, command: dict) -> None:
        self.api, self.name, self.component, self.command = api, name, component, command
        self.n_restarts, self.last = 0, {}
        self.leaves_at: float | None = None
        self.disruption = ""
        self.process = api.start(**command) if self.runs() else None

    def runs(self) -> bool:
        is_worker = self.component == "worker"
        broken = ("no-image", "no-room")
        return self.api.mode not in broken and not (is_worker and "workers-" in self.api.mode)

    def leave(self, disruption: str) -> None:
        """End the process, and let the pod be seen for a while."""
        self.leaves_at, self.disruption = time.monotonic() + GRACE_SECONDS, disruption
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def keep(self) -> None:
        """Start the container again if its process has ended, as a kubelet does."""
        if self.leaves_at is not None:
            return
        code = self.process.poll() if self.process else None
        if code is None:
            return
        reason = "OOMKilled" if code == -signal.SIGKILL else "Error"
        self.last = {"terminated": {"reason": reason, "exitCode": 128 - code if code < 0 else code}}
        self.n_restarts += 1
        self.process = self.api.start(**self.command)

    def status(self) -> dict:
        kind = self.api.mode.removeprefix("workers-") if not self.runs() else "works"
        container = {"state": {}, "lastState": self.last, "restartCount": self.n_restarts}
        if kind == "no-room":
            why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            return {"phase": "Pending", "conditions": [{**why, "message": NO_ROOM}]}
        if kind == "no-image":
            waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "no:1"'}
            container["state"] = {"waiting": waiting}
            return {"phase": "Pending", "containerStatuses": [container]}
        if kind == "crash":
            waiting = {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed"}
            ended = {"terminated": {"reason": "Error", "exitCode": 1}}
            container |= {"state": {"waiting": waiting}, "lastState": ended, "restartCount": 3}
            return {"phase": "Running", "containerStatuses": [container]}
        is_scheduler = self.component == "scheduler"
        is_ready = str(not is_scheduler or is_open(self.api.ports[8787]))  # as its probe asks
        ready = [{"type": kind, "status": is_ready} for kind in ("Ready", "ContainersReady")]
        if self.disruption:
            why = {"reason": self.disruption, "message": f"{self.disruption}: by a drain"}
            ready.append({"type": "DisruptionTarget", "status": "True", **why})
        return {"phase": "Running", "conditions": ready, "containerStatuses": [container]}

    def describe(self, cluster: str) -> dict:
        labels = {"dask.org/cluster-name": cluster, "dask.org/component": self.component}
        metadata = {"name": self.name, "namespace": NAMESPACE, "labels": labels}
        if self.leaves_at is not None:
            metadata["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"kind": "Pod", "metadata": metadata, "spec": {}, "status": self.status()}

    def end(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Api:
    def __init__(self, folder: Path, mode: str) -> None:
        assert mode in MODES, mode
        self.folder, self.mode = folder, mode
        self.clusters: dict[str, dict] = {}
        self.members: dict[str, list[Pod]] = {}
        self.ports: dict[int, int] = {}
        self.forwards: set[web.WebSocketResponse] = set()
        self.suffixes = count(1)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.note])
        app.add_routes(
            [
                web.get("/version{tail:/?}", self.version),
                web.get("/api{tail:/?}", self.versions),
                web.get("/api/v1{tail:/?}", self.resources),
                web.get("/apis{tail:/?}", self.groups),
                web.post(REVIEWS, self.review),
                web.post(CLUSTERS, self.create),
                web.get(CLUSTERS, self.find_clusters),
                web.get(CLUSTERS + "/{name}", self.get_cluster),
                web.delete(CLUSTERS + "/{name}", self.delete),
                web.get(f"{CORE}/pods", self.pods),
                web.get(f"{CORE}/pods/{{name}}", self.pods),
                web.delete(f"{CORE}/pods/{{name}}", self.delete_pod),
                web.get(f"{CORE}/pods/{{name}}/log", self.pod_log),
                web.get(f"{CORE}/services", self.services),
                web.get(f"{CORE}/services/{{name}}", self.services),
                web.get(f"{CORE}/pods/{{name}}/portforward", self.forward),
            ]
        )
        app.on_startup.append(self.begin_to_keep)
        app.on_cleanup.append(self.end_all)
        return app

    @web.middleware
    async def note(self, request, handler):
        with (self.folder / "log").open("a") as log:
            log.write(f"{request.method} {request.path_qs}\n")
        if self.is_away:
            request.transport.abort()
            return web.Response()
        if self.mode == "no-operator-installed" and "kubernetes.dask.org" in request.path:
            return web.Response(status=404, text="404 page not found\n")
        if self.is_refused(request):
            return refuse(403, "Forbidden", self.forbidden(request))
        return await handler(request)

    @property
    def is_away(self) -> bool:
        return (self.folder / "away").exists()

    def is_refused(self, request) -> bool:
        path, method = request.path, request.method
        if self.mode == "forbidden":
            return method == "POST" and path == CLUSTERS
        if self.mode == "no-pods-right":
            return path == f"{CORE}/pods"
        return self.mode.startswith("no-forward") and path.endswith("/portforward")

    def forbidden(self, request) -> str:
        verb = "create" if request.method == "POST" or "portforward" in request.path else "list"
        is_dask = "kubernetes.dask.org" in request.path
        group = "kubernetes.dask.org" if is_dask else ""
        resource = "pods/portforward" if "portforward" in request.path else "pods"
        resource = "daskclusters" if is_dask else resource
        full = f"{resource}.{group}".rstrip(".")
        return (
            f'{full} is forbidden: User "me" cannot {verb} resource "{resource}" in API group '
            f'"{group}" in the namespace "{NAMESPACE}"'
        )

    async def version(self, request):
        return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})

    async def versions(self, request):
        return web.json_response({"kind": "APIVersions", "versions": ["v1"]})

    async def resources(self, request):
        names = {"pods": "Pod", "services": "Service"}
        found = [
            {"name": name, "singularName": kind.lower(), "kind": kind, "namespaced": True}
            for name, kind in names.items()
        ]
        return web.json_response({"kind": "APIResourceList", "resources": found})

    async def groups(self, request):
        return web.json_response({"kind": "APIGroupList", "groups": []})

    async def review(self, request):
        review = await request.json()
        asked = review["spec"]["resourceAttributes"]
        words = {asked["verb"], asked["resource"], asked.get("subresource")}
        refused = {"forbidden": {"create", "daskclusters"}, "no-forward": {"create", "portforward"}}
        is_refused = self.mode in refused and refused[self.mode] <= words
        return web.json_response({**review, "status": {"allowed": not is_refused}}, status=201)

    async def create(self, request):
        cluster = await request.json()
        name = cluster["metadata"]["name"]
        if self.mode == "no-namespace":
            return refuse(404, "NotFound", f'namespaces "{NAMESPACE}" not found')
        is_strict = request.query.get("fieldValidation") == "Strict"
        wrong = list(refusals(cluster, schema(), "", is_strict=is_strict))
        if wrong:
            kind = "DaskCluster.kubernetes.dask.org"
            return refuse(422, "Invalid", f'{kind} "{name}" is invalid: {wrong[0]}')
        if request.query.get("dryRun") == "All":
            return web.json_response(cluster, status=201)
        cluster["metadata"] |= {"namespace": NAMESPACE, "uid": "1"}
        (self.folder / "created.json").write_text(json.dumps(cluster))
        if self.mode == "vanishes":
            return web.json_response(cluster, status=201)
        self.clusters[name] = cluster
        self.members[name] = []
        if self.mode == "no-operator-running":
            return web.json_response(cluster, status=201)
        cluster["status"] = {"phase": "Pending" if self.mode == "stays-pending" else "Running"}
        if self.mode != "no-pods":
            self.run(name, cluster["spec"])
        return web.json_response(cluster, status=201)

    def run(self, name: str, spec: dict) -> None:
        self.ports = {8786: free_port(), 8787: free_port()}
        scheduler = spec["scheduler"]["spec"]["containers"][0]
        # Last ones count: a pod has its own loopback, but we have one for all.
        here = ["--host", "127.0.0.1", "--port", str(self.ports[8786])]
        here += ["--dashboard-address", f"127.0.0.1:{self.ports[8787]}"]
        command = {"name": "scheduler", "container": scheduler, "more": here, "variables": {}}
        self.members[name].append(Pod(self, f"{name}-scheduler-1", "scheduler", command))
        worker = spec["worker"]["spec"]["containers"][0]
        for i in range(spec["worker"]["replicas"]):
            deployment = f"{name}-default-worker-{i}"
            variables = {
                "DASK_WORKER_NAME": deployment,
                "DASK_SCHEDULER_ADDRESS": f"tcp://127.0.0.1:{self.ports[8786]}",
            }
            here = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
            command = {"name": deployment, "container": worker, "more": here}
            command["variables"] = variables
            pod = Pod(self, f"{deployment}-a1b2-c3d4", "worker", command)

            self.members[name].append(pod)
        self.note_pids()

    def note_pids(self) -> None:
        pods = [pod for group in self.members.values() for pod in group if pod.process]
        pids = {pod.name: pod.process.pid for pod in pods}
        (self.folder / "pids.part").write_text(json.dumps(pids))
        (self.folder / "pids.part").rename(self.folder / "pids.json")

    def start(self, name: str, container: dict, more: list[str], variables: dict):
        words = [word.replace("$(DASK_WORKER_NAME)", name) for word in container["args"]]
        own = {each["name"]: each["value"] for each in container.get("env") or []}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *words, *more],
                env={**os.environ, **variables, **own, "POD": name},
                cwd=container.get("workingDir"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def begin_to_keep(self, app) -> None:
        async def keep() -> None:
            while True:
                await asyncio.sleep(0.5)
                for group in self.members.values():
                    for pod in group:
                        pod.keep()
                    group[:] = [pod for pod in group if (pod.leaves_at or inf) > time.monotonic()]
                for socket_ in list(self.forwards) if self.is_away else []:
                    await socket_.close()

        app["keep"] = asyncio.create_task(keep())

    async def find_clusters(self, request):
        chosen = request.query.get("fieldSelector", "").split(",")[0].partition("=")[2]
        found = [self.clusters[chosen]] if chosen in self.clusters else []
        return web.json_response({"kind": "DaskClusterList", "items": found})

    async def get_cluster(self, request):
        cluster = self.clusters.get(request.match_info["name"])
        return web.json_response(cluster) if cluster else not_found(request)

    async def delete(self, request):
        name = request.match_info["name"]
        if name not in self.clusters:
            return not_found(request)
        if self.mode == "silent-at-end":
            await asyncio.sleep(600)
        cluster = self.clusters[name]
        (self.folder / "deleted").write_text(name)
        if self.mode == "no-operator-at-end":  # the finalizer of kopf waits for it
            cluster["metadata"]["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ")
            return web.json_response(cluster)
        del self.clusters[name]
        self.end(name)
        return web.json_response(cluster)

    def end(self, name: str) -> None:
        for pod in self.members.pop(name, []):
            pod.end()

    async def end_all(self, app) -> None:
        app["keep"].cancel()
        for name in list(self.members):
            self.end(name)

    async def pods(self, request):
        found = [pod.describe(name) for name, group in self.members.items() for pod in group]
        if "name" in request.match_info:
            named = [pod for pod in found if pod["metadata"]["name"] == request.match_info["name"]]
            return web.json_response(named[0]) if named else not_found(request)
        found = [pod for pod in found if has_labels(pod, request.query.get("labelSelector", ""))]
        if "Running" in request.query.get("fieldSelector", ""):
            found = [pod for pod in found if pod["status"]["phase"] == "Running"]
        return web.json_response({"kind": "PodList", "items": found})

    async def delete_pod(self, request):
        for group in self.members.values():
            for pod in [pod for pod in group if pod.name == request.match_info["name"]]:
                pod.leave(request.query.get("disruption", ""))
                name = f"{pod.name.rpartition('-')[0]}-e{next(self.suffixes)}"
                group.append(Pod(self, name, pod.component, pod.command))
                self.note_pids()
                return web.json_response(pod.describe(""))
        return not_found(request)

    async def pod_log(self, request):
        return web.Response(text=f"Traceback (most recent call last):\n{CRASH}\n")

    async def services(self, request):
        found = [self.service(name, cluster) for name, cluster in self.clusters.items()]
        if "name" in request.match_info:
            return web.json_response(found[0]) if found else not_found(request)
        return web.json_response({"kind": "ServiceList", "items": found})

    def service(self, name: str, cluster: dict) -> dict:
        metadata = {"name": f"{name}-scheduler", "namespace": NAMESPACE}
        return {
            "kind": "Service",
            "metadata": metadata,
            "spec": cluster["spec"]["scheduler"]["service"],
        }

    async def forward(self, request):
        """Relay a port, each message led by the number of its channel."""
        port = int(request.query["ports"])
        socket_ = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket_.prepare(request)
        self.forwards.add(socket_)
        for channel in (b"\x00", b"\x01"):
            await socket_.send_bytes(channel + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[port])
        except OSError:  # not listening yet
            await socket_.close()
            return socket_

        async def answer() -> None:
            with suppress(OSError):  # of a process that was killed
                while data := await reader.read(1 << 16):
                    await socket_.send_bytes(b"\x00" + data)
            await socket_.close()

        answering = asyncio.create_task(answer())
        async for message in socket_:
            if message.type == WSMsgType.BINARY and message.data[:1] == b"\x00":
                writer.write(message.data[1:])
                await writer.drain()
        answering.cancel()
        writer.close()
        return socket_


def schema() -> dict:
    """Return the schema of the real CRD."""
    import dask_kubernetes

    path = Path(dask_kubernetes.__file__).parent / CRD
    definition = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    return definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def refusals(value, rule: dict, path: str, *, is_strict: bool):
    """Yield what the API server says of values of the wrong type, and of unknown fields."""
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list}
    names = {str: "string", int: "integer", bool: "boolean", dict: "object", list: "array"}
    wanted = kinds[rule["type"]]
    if value is None:
        return
    if type(value) is not wanted:
        found = names.get(type(value), "number")
        yield f'{path}: Invalid value: "{found}": {path} in body must be of type {rule["type"]}'
    elif wanted is list:
        for i, each in enumerate(value):
            yield from refusals(each, rule["items"], f"{path}[{i}]", is_strict=is_strict)
    elif wanted is dict:
        known, others = rule.get("properties", {}), rule.get("additionalProperties")
        for name, each in value.items():
            place = f"{path}.{name}".lstrip(".")
            if name in known or others:
                yield from refusals(each, known.get(name, others), place, is_strict=is_strict)
            elif is_strict and known and (path or name not in ("apiVersion", "kind", "metadata")):
                yield f'strict decoding error: unknown field "{place}"'


def has_labels(pod: dict, selector: str) -> bool:
    wanted = dict(each.split("=") for each in selector.split(",") if each)
    return wanted.items() <= pod["metadata"]["labels"].items()


def not_found(request) -> web.Response:
    name = request.match_info["name"]
    return refuse(404, "NotFound", f'daskclusters.kubernetes.dask.org "{name}" not found')


def refuse(code: int, reason: str, message: str) -> web.Response:
    status = {"kind": "Status", "status": "Failure", "reason": reason, "code": code}
    return web.json_response({**status, "message": message}, status=code)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    port = free_port()

    async def tell(app) -> None:
        (folder / "port.part").write_text(str(port))
        (folder / "port.part").rename(folder / "port")

    app = Api(folder, mode).app()
    app.on_startup.append(tell)
    web.run_app(app, host="127.0.0.1", port=port, print=None, shutdown_timeout=1)


if __name__ == "__main__":
    main()
