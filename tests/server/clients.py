"""A server on a real socket, and clients that misbehave."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import orjson
from aiohttp import web

from aioinfer import Engine, ServerConfig
from aioinfer.server import create_app, make_runner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.scripted_engine import ScriptedEngine

CHAT_URL = "/v1/chat/completions"
COMPLETIONS_URL = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


@dataclass
class Server:
    """A running server and a well-behaved client of it."""

    engine: ScriptedEngine
    app: web.Application
    runner: web.AppRunner
    port: int
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def get(self, path: str, **options: Any) -> Answer:
        async with self.session.get(self.url + path, **options) as response:
            return await Answer.of(response)

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        """Post `body`: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.session.post(self.url + path, data=data, **options) as response:
            return await Answer.of(response)

    async def complete(self, prompt: Any = "Hi", **fields: Any) -> Answer:
        return await self.post(COMPLETIONS_URL, {"prompt": prompt, **fields})

    async def chat(self, messages: Any = HELLO, **fields: Any) -> Answer:
        return await self.post(CHAT_URL, {"messages": messages, **fields})


@dataclass
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: Any
    body: bytes

    @classmethod
    async def of(cls, response: aiohttp.ClientResponse) -> Answer:
        return cls(response.status, response.headers, await response.read())

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> Any:
        """The error, checked to have OpenAI's shape."""
        assert self.headers["Content-Type"] == "application/json"
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return error

    @property
    def events(self) -> list[Any]:
        """The stream's events; comments are left out, [DONE] is a string."""
        assert self.body.endswith(b"\n\n")
        lines = [line for line in self.body.decode().split("\n\n") if line and not line.startswith(":")]
        assert all(line.startswith("data: ") for line in lines)
        data = [line.removeprefix("data: ") for line in lines]
        return [one if one == "[DONE]" else orjson.loads(one) for one in data]


@asynccontextmanager
async def serving(
    engine: ScriptedEngine, *, client_timeout_s: float = 60, **config: Any
) -> AsyncIterator[Server]:
    """The application over `engine`, with the settings of production."""
    app = create_app(cast("Engine", engine), ServerConfig(**config))
    runner = make_runner(app, shutdown_timeout_s=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=client_timeout_s)) as session:
            yield Server(engine, app, runner, port, session)
    finally:
        await runner.cleanup()


class RawClient:
    """A TCP connection that says what it likes, with a small receive buffer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int, *, buffer_bytes: int | None = None) -> AsyncIterator[RawClient]:
        connection = socket.socket()
        if buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        # A small limit, so that the client stops to read the socket when the test stops to read the client.
        reader, writer = await asyncio.open_connection(sock=connection, limit=buffer_bytes or 2**16)
        client = cls(reader, writer)
        try:
            yield client
        finally:
            client.abort()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, path: str, body: Any) -> None:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        self.send(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    async def read_until(self, mark: bytes) -> bytes:
        return await self.reader.readuntil(mark)

    def abort(self) -> None:
        """Vanish."""
        self.writer.transport.abort()

    async def aclose(self) -> None:
        """Leave politely."""
        self.writer.close()
        await self.writer.wait_closed()


class RawWebSocket:
    """A WebSocket client that reads when it is told to."""

    def __init__(self, client: RawClient) -> None:
        self.client = client

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int, *, buffer_bytes: int = 4096) -> AsyncIterator[RawWebSocket]:
        async with RawClient.connect(port, buffer_bytes=buffer_bytes) as client:
            key = base64.b64encode(os.urandom(16)).decode()
            client.send(
                "GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
            )
            head = await client.read_until(b"\r\n\r\n")
            assert b" 101 " in head
            yield cls(client)

    def send(self, message: Any, *, opcode: int = 1) -> None:
        data = message if isinstance(message, bytes) else orjson.dumps(message)
        assert len(data) < 2**16
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
        self.client.send(bytes([0x80 | opcode]) + size + bytes(4) + data)  # masked with zeros

    async def receive(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame."""
        reader = self.client.reader
        first, size = await reader.readexactly(2)
        if size == 126:
            [size] = struct.unpack(">H", await reader.readexactly(2))
        elif size == 127:
            [size] = struct.unpack(">Q", await reader.readexactly(8))
        return first & 0x0F, await reader.readexactly(size)

    async def receive_json(self) -> Any:
        opcode, payload = await self.receive()
        assert opcode == 1
        return orjson.loads(payload)
