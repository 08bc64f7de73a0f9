"""A hub with a dataset, `org/sums`, and a model, `org/small`, as far as readers ask a hub: listings and files."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_CARD = b"""---
configs:
- config_name: main
  data_files:
  - split: train
    path: data/train.jsonl
---
"""
_ROWS = [{"problem": f"{n}+1?", "solution": str(n + 1)} for n in range(50)]
_DATASET = {
    "README.md": _CARD,
    "data/train.jsonl": "".join(json.dumps(row) + "\n" for row in _ROWS).encode(),
}
_MODEL = {"config.json": b"{}", "model.safetensors": bytes(3_000_000), "model.bin": bytes(9)}
_COMMIT = "a" * 40
_REPOS = {"datasets/org/sums": _DATASET, "models/org/small": _MODEL}


class _Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests say what went wrong."""

    def do_GET(self) -> None:
        for repo, files in _REPOS.items():
            if self._answers_for(repo, files):
                return
        self._say(b"{}", 404, {"X-Error-Code": "EntryNotFound"})

    def _answers_for(self, repo: str, files: dict[str, bytes]) -> bool:
        path, api = urlsplit(self.path).path, f"/api/{repo}"
        file = f"/{repo.removeprefix('models/')}/resolve/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{_COMMIT}"):
            about = {"id": repo.partition("/")[2], "sha": _COMMIT, "siblings": []}
            self._say(json.dumps(about).encode())
        elif path.startswith(f"{api}/tree/"):
            below = path.removeprefix(f"{api}/tree/").partition("/")[2]
            listed = [_entry(name, body) for name, body in files.items() if name.startswith(below)]
            self._say(json.dumps(listed).encode())
        elif path.startswith(file) and (name := path[len(file) :].partition("/")[2]) in files:
            self._send_file(files[name])
        else:
            return False
        return True

    do_HEAD = do_GET

    def _send_file(self, body: bytes) -> None:
        headers = {"ETag": f'"{_digest(body)}"', "X-Repo-Commit": _COMMIT}
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._say(body, 200, headers)
        first, last = wanted.removeprefix("bytes=").split("-")
        part = body[int(first) : int(last or len(body)) + 1]
        end = int(first) + len(part) - 1
        return self._say(
            part, 206, {**headers, "Content-Range": f"bytes {first}-{end}/{len(body)}"}
        )

    def _say(self, body: bytes, code: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _entry(name: str, body: bytes) -> dict[str, object]:
    return {"type": "file", "oid": _digest(body), "size": len(body), "path": name}


def _digest(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@contextmanager
def serving() -> Iterator[str]:
    """The address of the hub."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
