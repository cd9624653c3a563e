"""A hub on a local socket: one public repository, a gated one, and nothing else."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "1234567890abcdef1234567890abcdef12345678"
FILES = {
    "config.json": b"{}",
    "model.safetensors": random.Random(0).randbytes(300_000),
    "chat_template.jinja": b"{{ messages }}",
    "pytorch_model.bin": b"never fetched",
    "README.md": b"never fetched",
}


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/some-owner/model/resolve/"):
            self._file(path.rpartition("/")[2])
        elif path == "/api/models/some-owner/model/revision/main":
            siblings = [{"rfilename": name} for name in FILES]
            self._json({"id": "some-owner/model", "sha": COMMIT, "siblings": siblings})
        elif path == f"/api/models/some-owner/model/tree/{COMMIT}":
            self._json(
                [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(content),
                        "oid": hashlib.sha1(content).hexdigest(),
                    }
                    for name, content in FILES.items()
                ]
            )
        elif path.startswith("/api/models/some-owner/model/"):
            self._error(404, "RevisionNotFound")
        elif path.startswith("/api/models/some-owner/gated/"):
            self._error(403, "GatedRepo")
        else:
            self._error(404, "RepoNotFound")

    def _file(self, name: str) -> None:
        content = FILES[name]
        if self.command == "GET":
            self.server.fetched.append(name)
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        self._answer(content, headers={"ETag": etag, "X-Repo-Commit": COMMIT})

    def _json(self, value: object) -> None:
        self._answer(json.dumps(value).encode(), headers={"Content-Type": "application/json"})

    def _error(self, status: int, code: str) -> None:
        self._answer(b"{}", status, headers={"X-Error-Code": code})

    def _answer(self, body: bytes, status: int = 200, *, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class HubServer(ThreadingHTTPServer):
    """The hub; `fetched` has the names of the files it sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fetched: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def running_hub() -> Iterator[HubServer]:
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
