"""A model hub on this machine: the routes that huggingface_hub calls to create, ask and commit."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_tests"


@dataclass
class Hub:
    """The uploads of a test."""

    url: str = ""
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    """Files of the one repository, by path."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by their hash, as LFS uploads them before the commit."""
    refuses: int | None = None
    """Answer each creation with this status."""


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: Hub

    def do_POST(self) -> None:
        hub, content = self.state, self._content()
        if self.path == "/api/validate-yaml":  # needs no token
            self._answer({"errors": [], "warnings": []})
        elif self.headers.get("authorization") != f"Bearer {TOKEN}":
            self._answer({"error": "Invalid credentials"}, 401)
        elif self.path == "/api/repos/create":
            if hub.refuses:
                self._answer({"error": "no"}, hub.refuses)
                return
            made = json.loads(content)
            hub.created.append(made)
            name = f"{made['organization']}/{made['name']}"
            self._answer({"url": f"{hub.url}/{name}", "name": name})
        elif self.path.endswith("/preupload/main"):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(content)["files"]
            ]
            self._answer({"files": files})
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**wanted, "actions": {"upload": {"href": f"{hub.url}/lfs/{wanted['oid']}"}}}
                for wanted in json.loads(content)["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif self.path.endswith("/commit/main"):
            for line in content.decode().splitlines():
                self._commit(json.loads(line))
            self._answer({"commitUrl": f"{hub.url}/me/model/commit/1", "commitOid": "1"})
        else:
            self._answer({"error": f"no route {self.path}"}, 404)

    def _commit(self, operation: dict[str, Any]) -> None:
        value = operation["value"]
        if operation["key"] == "file":
            self.state.files[value["path"]] = base64.b64decode(value["content"])
        elif operation["key"] == "lfsFile":
            self.state.files[value["path"]] = self.state.objects[value["oid"]]

    def do_PUT(self) -> None:
        self.state.objects[self.path.rpartition("/")[2]] = self._content()
        self._answer({})

    def do_GET(self) -> None:
        self._answer({"error": f"no route {self.path}"}, 404)

    def _content(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, document: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The tests read what arrived."""
