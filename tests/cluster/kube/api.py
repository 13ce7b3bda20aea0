"""A stand-in for the API server of Kubernetes and the Dask operator, with pods as processes.

Run as a program: `python -m tests.cluster.kube.api FOLDER MODE`. It answers the few calls that
dask-kubernetes makes, runs what the description of a cluster says as processes of this machine, and
forwards ports as the real one does. MODE is what is wrong: nothing, `no-operator-installed`,
`no-operator-running`, `forbidden`, `no-image` or `no-room`. `port` and `log` are in FOLDER.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from aiohttp import WSMsgType, web

NAMESPACE = "speech"
CLUSTERS = f"/apis/kubernetes.dask.org/v1/namespaces/{NAMESPACE}/daskclusters"
CORE = f"/api/v1/namespaces/{NAMESPACE}"


class Api:
    def __init__(self, folder: Path, mode: str) -> None:
        self.folder, self.mode = folder, mode
        self.clusters: dict[str, dict] = {}
        self.processes: dict[str, list[subprocess.Popen]] = {}
        self.ports: dict[int, int] = {}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.note])
        app.add_routes(
            [
                web.get("/version{tail:/?}", self.version),
                web.get("/api{tail:/?}", self.versions),
                web.get("/api/v1{tail:/?}", self.resources),
                web.get("/apis{tail:/?}", self.groups),
                web.post(CLUSTERS, self.create),
                web.get(CLUSTERS.replace("daskclusters", "daskworkergroups"), self.find_groups),
                web.get(CLUSTERS, self.find_clusters),
                web.get(CLUSTERS + "/{name}", self.get_cluster),
                web.delete(CLUSTERS + "/{name}", self.delete),
                web.get(f"{CORE}/pods", self.pods),
                web.get(f"{CORE}/pods/{{name}}", self.pods),
                web.get(f"{CORE}/services", self.services),
                web.get(f"{CORE}/services/{{name}}", self.services),
                web.get(f"{CORE}/pods/{{name}}/portforward", self.forward),
            ]
        )
        app.on_cleanup.append(self.end_all)
        return app

    @web.middleware
    async def note(self, request, handler):
        with (self.folder / "log").open("a") as log:
            log.write(f"{request.method} {request.path_qs}\n")
        if self.mode == "forbidden" and "daskclusters" in request.path:
            return refuse(403, "Forbidden", "daskclusters is forbidden: you cannot create them")
        if self.mode == "no-operator-installed" and "daskclusters" in request.path:
            return refuse(404, "NotFound", "the server could not find the requested resource")
        return await handler(request)

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

    async def create(self, request):
        cluster = await request.json()
        name = cluster["metadata"]["name"]
        cluster["metadata"] |= {"namespace": NAMESPACE, "uid": "1"}
        self.clusters[name] = cluster
        (self.folder / "created.json").write_text(json.dumps(cluster))
        if self.mode != "no-operator-running":
            cluster["status"] = {"phase": "Running"}
            if self.mode == "works":
                self.run(name, cluster["spec"])
        return web.json_response(cluster, status=201)

    def run(self, name: str, spec: dict) -> None:
        self.ports = {8786: free_port(), 8787: free_port()}
        scheduler = spec["scheduler"]["spec"]["containers"][0]
        # Last ones count: a pod has its own loopback, but we have one for all.
        here = ["--host", "127.0.0.1", "--port", str(self.ports[8786])]
        here += ["--dashboard-address", f"127.0.0.1:{self.ports[8787]}"]
        processes = [self.start("scheduler", scheduler, here, {})]
        worker = spec["worker"]["spec"]["containers"][0]
        for i in range(spec["worker"]["replicas"]):
            pod = f"{name}-default-worker-{i}"
            variables = {
                "DASK_WORKER_NAME": pod,
                "DASK_SCHEDULER_ADDRESS": f"tcp://127.0.0.1:{self.ports[8786]}",
            }
            here = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
            processes.append(self.start(pod, worker, here, variables))
        self.processes[name] = processes

    def start(self, name: str, container: dict, more: list[str], variables: dict):
        words = [word.replace("$(DASK_WORKER_NAME)", name) for word in container["args"]]
        own = {each["name"]: each["value"] for each in container.get("env") or []}
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *words, *more],
                env={**os.environ, **variables, **own, "POD": name},
                cwd=container.get("workingDir"),
                stdout=log,
                stderr=log,
            )

    async def find_clusters(self, request):
        chosen = request.query.get("fieldSelector", "").split(",")[0].partition("=")[2]
        found = [self.clusters[chosen]] if chosen in self.clusters else []
        return web.json_response({"kind": "DaskClusterList", "items": found})

    async def find_groups(self, request):
        names = [f"{name}-default" for name in self.clusters]
        groups = [{"metadata": {"name": name, "namespace": NAMESPACE}} for name in names]
        return web.json_response({"kind": "DaskWorkerGroupList", "items": groups})

    async def get_cluster(self, request):
        cluster = self.clusters.get(request.match_info["name"])
        return web.json_response(cluster) if cluster else refuse(404, "NotFound", "not found")

    async def delete(self, request):
        name = request.match_info["name"]
        cluster = self.clusters.pop(name, None)
        if cluster is None:
            return refuse(404, "NotFound", "not found")
        self.end(name)
        (self.folder / "deleted").write_text(name)
        return web.json_response(cluster)

    def end(self, name: str) -> None:
        processes = self.processes.pop(name, [])
        for process in processes:
            process.kill()
            process.wait()

    async def end_all(self, app) -> None:
        for name in list(self.processes):
            self.end(name)

    async def pods(self, request):
        found = [self.pod(name) for name in self.clusters]
        if "name" in request.match_info:
            return web.json_response(found[0])
        if "Running" in request.query.get("fieldSelector", ""):
            found = [pod for pod in found if pod["status"]["phase"] == "Running"]
        return web.json_response({"kind": "PodList", "items": found})

    def pod(self, cluster: str) -> dict:
        labels = {"dask.org/cluster-name": cluster, "dask.org/component": "scheduler"}
        metadata = {"name": f"{cluster}-scheduler-1", "namespace": NAMESPACE, "labels": labels}
        is_ready = str(self.ports and is_open(self.ports[8787]))  # as its readiness probe asks
        ready = [{"type": kind, "status": is_ready} for kind in ("Ready", "ContainersReady")]
        status: dict = {"phase": "Running", "conditions": ready}
        if self.mode == "no-image":
            waiting = {
                "reason": "ImagePullBackOff",
                "message": 'Back-off pulling image "no:1"',
            }
            status = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
        elif self.mode == "no-room":
            why = {"reason": "Unschedulable", "message": "0/4 nodes: Insufficient nvidia.com/gpu"}
            status = {"phase": "Pending", "conditions": [{"status": "False", **why}]}
        elif self.mode == "no-operator-running":
            return {"kind": "Pod", "metadata": metadata, "status": {"phase": "Pending"}}
        return {"kind": "Pod", "metadata": metadata, "spec": {}, "status": status}

    async def services(self, request):
        found = [self.service(name, cluster) for name, cluster in self.clusters.items()]
        if "name" in request.match_info:
            return web.json_response(found[0])
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
        for channel in (b"\x00", b"\x01"):
            await socket_.send_bytes(channel + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[port])
        except OSError:  # not listening yet
            await socket_.close()
            return socket_

        async def answer() -> None:
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
    web.run_app(app, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    main()
