"""``GET /v1/stream``: any number of generations on one WebSocket.

The client sends JSON objects in text messages::

    {"type": "generate", "id": "a", ...}     with the fields of a chat or a completions body
    {"type": "cancel", "id": "a"}

A `generate` with `messages` is a chat, one with `prompt` a plain completion.  An id is a string of 1 to 128
characters, chosen by the client; it is free again when its generation is over.  The server answers::

    {"type": "delta", "id": "a", "text": "..."}                                       new text
    {"type": "finish", "id": "a", "finish_reason": "...", "stop_reason": ..., "usage": {...}}
    {"type": "error", "id": "a", "error": {"message", "type", "param", "code"}}

Each generation ends with one `finish` (`stop`, `length`, or `abort` if it was cancelled or the server shuts
down) or one `error`.  An error whose id is null ends no generation: a message could not be read, or its id is
in use.  Whatever is wrong with a message, the others on the socket go on.

Closing the socket, cleanly or not, cancels what runs on it.  A client that reads slowly gets fewer, larger
deltas.  One that takes nothing for `write_timeout_s` is closed with code 1008; a server that shuts down
closes with 1001; a message larger than `max_body_bytes` closes with 1009.

One task reads; each generation has one that writes.  All are children of the session's task group.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import ClientConnectionResetError, WSCloseCode, WSMsgType, web

from aioinfer.errors import EngineClosed, InvalidRequest, Overloaded
from aioinfer.server.errors import failure_of
from aioinfer.server.outlet import Outlet
from aioinfer.server.replies import usage_object
from aioinfer.server.schemas import ChatRequest, CompletionRequest, parse_json_object
from aioinfer.server.service import SERVICE
from aioinfer.types import FinishReason

if TYPE_CHECKING:
    from aioinfer import Delta, RequestStream
    from aioinfer.server.service import Service

MAX_ID_CHARS = 128

# How long a socket that is being closed may take to deliver what it holds; a guess.
GOODBYE_S = 5.0

# aiohttp would wait inside its send, where cancelling one generation breaks the others; the outlet waits.
_NO_WRITER_LIMIT = 2**62


async def stream(request: web.Request) -> web.StreamResponse:
    """Serve one WebSocket until it closes."""
    service = request.app[SERVICE]
    config = service.config
    if service.draining:
        raise EngineClosed("the server is draining and takes no new sockets")
    socket = web.WebSocketResponse(
        heartbeat=config.ws_heartbeat_s or None,
        max_msg_size=config.max_body_bytes,
        timeout=GOODBYE_S,
        compress=False,
        autoping=False,
        writer_limit=_NO_WRITER_LIMIT,
    )
    if not socket.can_prepare(request):
        raise web.HTTPUpgradeRequired(
            text="this route speaks WebSocket: send the headers of an upgrade",
            headers={"Upgrade": "websocket"},
        )
    session = Session(service, request, socket)
    with suppress(ClientConnectionResetError):  # the client left before it was answered
        await session.run()
    return socket


@dataclass(slots=True)
class _Generation:
    stream: RequestStream
    task: asyncio.Task[None] | None = None


class Session:
    """One socket and what runs on it.

    Args:
        service: what it shares with the other routes.
        request: the upgrade.
        socket: its answer, not yet prepared.
    """

    def __init__(self, service: Service, request: web.Request, socket: web.WebSocketResponse) -> None:
        self._service = service
        self._request = request
        self._socket = socket
        self._active: dict[str, _Generation] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._stalled = asyncio.Event()

    async def run(self) -> None:
        """Upgrade, then serve until the socket closes."""
        writer = await self._socket.prepare(self._request)
        self._outlet = Outlet(
            self._request, writer, timeout_s=self._service.config.write_timeout_s, on_stall=self._stalled.set
        )
        self._service.sessions.add(self)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                dropper = self._tasks.create_task(self._drop_when_stalled())
                await self._read()
                for task in self._running:
                    task.cancel()
                if not self._stalled.is_set():
                    dropper.cancel()
        finally:
            self._service.sessions.discard(self)
            self._outlet.close()

    async def shut_down(self) -> None:
        """Close, after what has just ended has been told to the client."""
        if self._running:
            await asyncio.wait(self._running, timeout=GOODBYE_S)
        await self._close(WSCloseCode.GOING_AWAY, b"the server is shutting down")

    async def _close(self, code: WSCloseCode, reason: bytes) -> None:
        await self._socket.close(code=code, message=reason, drain=False)

    # Reading

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                match message.type:
                    case WSMsgType.TEXT:
                        await self._take(message.data)
                    case WSMsgType.BINARY:
                        await self._send_error(None, InvalidRequest("send text messages, not binary ones"))
                    case WSMsgType.PING:
                        # Not aiohttp's own answer, which never waits for a client that does not read.
                        await self._outlet.ready()
                        await self._socket.pong(message.data)
                    case WSMsgType.ERROR:
                        return
        except ConnectionError:
            return  # the client left while it was being answered

    async def _take(self, text: str) -> None:
        """Do what one message says; what is wrong with it is answered."""
        generation_id = None
        try:
            fields = parse_json_object(text, name="message")
            kind = fields.pop("type", None)
            fresh_id = _check_id(fields.pop("id", None))
            if kind == "cancel":
                generation_id = fresh_id
                await self._cancel(generation_id, fields)
            elif kind == "generate":
                self._check_unused(fresh_id)
                generation_id = fresh_id
                self._generate(generation_id, fields)
            else:
                raise InvalidRequest(f"type must be generate or cancel, got {str(kind)[:64]!r}", param="type")
        except ConnectionError:
            raise
        except Exception as error:
            await self._send_error(generation_id, error)

    def _check_unused(self, generation_id: str) -> None:
        if generation_id in self._active:
            raise InvalidRequest(
                f"id {generation_id!r} belongs to a generation that is running",
                param="id",
                code="duplicate_id",
            )

    def _generate(self, generation_id: str, fields: dict[str, Any]) -> None:
        self._service.require_ready()
        limit = self._service.config.ws_max_generations
        if len(self._active) >= limit:
            raise Overloaded(f"at most {limit} generations run at once on one socket", retry_after_s=1)
        body = _parse(fields)
        self._service.check_model(body.model)
        [stream] = self._service.streams(body, f"ws-{uuid.uuid4().hex}")
        generation = self._active[generation_id] = _Generation(stream)
        generation.task = self._tasks.create_task(self._run(generation_id, body, stream))
        self._running.add(generation.task)
        generation.task.add_done_callback(self._running.discard)

    async def _cancel(self, generation_id: str, fields: dict[str, Any]) -> None:
        if fields:
            raise InvalidRequest(f"cancel has only an id, got {', '.join(fields)[:128]}")
        generation = self._active.pop(generation_id, None)
        if generation is None:
            raise InvalidRequest(
                f"no generation with id {generation_id!r} is running", param="id", code="unknown_id"
            )
        generation.stream.cancel()
        if generation.task is not None:
            generation.task.cancel()
        await self._send(_finish_message(generation_id, generation.stream, FinishReason.ABORT, None))

    # Writing

    async def _run(
        self, generation_id: str, body: ChatRequest | CompletionRequest, stream: RequestStream
    ) -> None:
        """Write one generation.  Its id is free, and its request over, before its last message is sent."""
        try:
            last = await self._write(generation_id, stream)
            message = _finish_message(generation_id, stream, last.finish_reason, last.stop_reason)
        except ConnectionError:
            return  # the reader learns of it
        except InvalidRequest as error:
            message = _error_message(generation_id, body.in_client_terms(error, 0))
        except Exception as error:
            message = _error_message(generation_id, error)
        del self._active[generation_id]
        with suppress(ConnectionError):
            await self._send(message)

    async def _write(self, generation_id: str, stream: RequestStream) -> Delta:
        before = b'{"type":"delta","id":' + orjson.dumps(generation_id) + b',"text":'
        async with stream:
            async for delta in stream:
                if delta.text:
                    await self._send(before + orjson.dumps(delta.text) + b"}")
        return delta

    async def _send(self, message: bytes) -> None:
        """Send a message, and wait until the client takes more.

        Raises:
            ConnectionError: the client has left.
        """
        if self._outlet.blocked:
            await self._outlet.ready()
        await self._socket.send_frame(message, WSMsgType.TEXT)
        if self._outlet.blocked:
            await self._outlet.ready()

    async def _send_error(self, generation_id: str | None, error: Exception) -> None:
        await self._send(_error_message(generation_id, error))

    async def _drop_when_stalled(self) -> None:
        """Close on a client that does not read; should it read after all, it finds why."""
        await self._stalled.wait()
        await self._close(WSCloseCode.POLICY_VIOLATION, b"messages were not read for too long")
        await asyncio.sleep(GOODBYE_S)
        self._outlet.abort()


def _check_id(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS:
        raise InvalidRequest(
            f"id must be a string of 1 to {MAX_ID_CHARS} characters, chosen by the client", param="id"
        )
    return value


def _parse(fields: dict[str, Any]) -> ChatRequest | CompletionRequest:
    """The body inside a `generate`."""
    if ("messages" in fields) == ("prompt" in fields):
        raise InvalidRequest("a generate has either messages (chat) or prompt (completion)", param="prompt")
    if fields.get("stream") is False:
        raise InvalidRequest("a WebSocket always streams; leave stream out", param="stream")
    fields["stream"] = True
    if "messages" in fields:
        return ChatRequest.parse(fields)
    body = CompletionRequest.parse(fields)
    if body.prompt.is_list:
        raise InvalidRequest("a generate has one prompt; send several of them", param="prompt")
    return body


def _finish_message(
    generation_id: str, stream: RequestStream, reason: FinishReason | None, stop_reason: str | int | None
) -> bytes:
    return orjson.dumps(
        {
            "type": "finish",
            "id": generation_id,
            "finish_reason": reason,
            "stop_reason": stop_reason,
            "usage": usage_object([stream.usage]),
        }
    )


def _error_message(generation_id: str | None, error: Exception) -> bytes:
    return orjson.dumps({"type": "error", "id": generation_id, "error": failure_of(error).error})
