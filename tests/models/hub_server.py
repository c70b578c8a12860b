"""A small server that speaks as much of the hub's protocol as fetching and pushing need."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """Repositories as dictionaries of files; ``fault`` makes it fail in a way of its own."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.uploads: dict[str, bytes] = {}
        self.fault, self.requests = "", list[str]()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        self.server.requests.append(f"{self.command} {self.path}")

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), **headers}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reply(self, **content: object) -> None:
        self.answer(200, json.dumps(content).encode(), Content_Type="application/json")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):
            return self.answer(403)
        user, model, _, _, name = self.path.split("?")[0].lstrip("/").split("/", 4)
        files = self.server.repositories.get(f"{user}/{model}")
        if files is None:
            return self.answer(404, X_Error_Code="RepoNotFound")
        if name not in files:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        data = files[name]
        tag = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        large = {}
        if name.endswith(".safetensors"):
            tag = hashlib.sha256(data).hexdigest()
            large = {"X_Linked_Etag": f'"{tag}"', "X_Linked_Size": str(len(data))}
        if self.server.fault == "other bytes" and large:
            data = data[:-4] + b"\0\0\0\1"
        if self.server.fault == "breaks off" and self.command == "GET" and large:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:100])
            self.close_connection = True
            return self.connection.close()
        return self.answer(200, data, ETag=f'"{tag}"', X_Repo_Commit=COMMIT, **large)

    def do_PUT(self) -> None:
        self.server.uploads[self.path.rsplit("/", 1)[1]] = self.body()
        self.answer(200)

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def do_POST(self) -> None:
        path, body, address = self.path.split("?")[0], self.body(), self.server.address
        if self.server.fault == "may not write":
            return self.answer(403, b'{"error": "you may not write here"}')
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.repositories.setdefault(name, {})
            return self.reply(url=f"{address}/{name}", name=name, id=name)
        if path == "/api/validate-yaml":
            return self.reply(errors=[], warnings=[])
        if path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith("safetensors") else "regular" for name in names}
            known = ({"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items())
            return self.reply(files=list(known))
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{address}/lfs/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return self.reply(transfer="basic", objects=objects)
        name = "/".join(path.split("/")[3:5])
        files = self.server.repositories[name]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":
                files[value["path"]] = self.server.uploads[value["oid"]]
        return self.reply(success=True, commitUrl=f"{address}/{name}/commit/1", commitOid=COMMIT)


@contextmanager
def served() -> Iterator[Hub]:
    hub = Hub()
    threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True).start()
    yield hub
    hub.shutdown()
    hub.server_close()
