"""As much of the Hugging Face Hub as an upload needs, over real HTTP."""

import base64
import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class HubServer:
    """Repositories in memory; large files take the way of git LFS."""

    def __init__(self, token="hf_right_token"):
        self.token = token
        self.repos = {}
        """By id: whether it is private."""
        self.files = {}
        """By path in the repository: content."""
        self.objects = {}
        self.requests = []
        self.url = ""

    @contextmanager
    def running(self):
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join(10)

    def answer(self, method, path, body):
        """Return status and JSON."""
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"warnings": [], "errors": []}
        repo = re.match(r"(?:/api/models)?/([^/]+/[^/.]+)(?:\.git)?(/.*)?$", path)
        if repo is None or repo[1] not in self.repos:
            return 404, {"error": "Repository not found"}
        rest = repo[2] or ""
        if "/preupload/" in rest:
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": _mode(f["path"])} for f in files]
            return 200, {"files": [{**mode, "shouldIgnore": False} for mode in modes]}
        if rest.startswith("/info/lfs/objects/batch"):
            return 200, self._batch(json.loads(body))
        if "/commit/" in rest:
            return self._commit(repo[1], body)
        return 200, {"id": repo[1], "private": self.repos[repo[1]], "siblings": [], "sha": "0" * 40}

    def _create(self, wanted):
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.repos:
            return 409, {"error": "You already created this", "url": f"{self.url}/{name}"}
        if wanted["organization"] == "forbidden":
            return 403, {"error": "You don't have the rights to create a model"}
        self.repos[name] = wanted.get("private", wanted.get("visibility") == "private")
        return 200, {"url": f"{self.url}/{name}", "id": name, "name": name}

    def _batch(self, wanted):
        rows = []
        for one in wanted["objects"]:
            row = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.objects:
                row["actions"] = {"upload": {"href": f"{self.url}/store/{one['oid']}"}}
            rows.append(row)
        return {"transfer": "basic", "objects": rows}

    def _commit(self, repo, body):
        lines = [json.loads(line) for line in body.decode().splitlines()]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[value["path"]] = self.objects[value["oid"]]
        url = f"{self.url}/{repo}/commit/{'1' * 40}"
        return 200, {"success": True, "commitOid": "1" * 40, "commitUrl": url, "hookOutput": ""}


def _mode(path):
    return "lfs" if path.endswith(".safetensors") else "regular"


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self):
            body = self._body()
            path = self.path.partition("?")[0]
            hub.requests.append((self.command, path))
            if path.startswith("/store/"):
                assert hashlib.sha256(body).hexdigest() == path.removeprefix("/store/")
                hub.objects[path.removeprefix("/store/")] = body
                self._reply(200, {})
            elif self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._reply(401, {"error": "Invalid username or password."})
            else:
                self._reply(*hub.answer(self.command, path, body))

        do_GET = do_POST = do_PUT = do_HEAD = _serve

        def _body(self):
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _reply(self, status, values):
            data = json.dumps(values).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if status >= 400:
                self.send_header("X-Error-Message", values["error"])
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *values):
            pass

    return Handler
