"""The WebSocket: many generations on one socket, what is wrong with a message, and sockets that misbehave."""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from aioinfer import EngineState, FinishReason, SamplingParams
from aioinfer.errors import ConsumerTooSlow, EngineFailed
from aioinfer.server.service import SERVICE
from tests.server.clients import HELLO, RawClient, RawWebSocket, Server, serving
from tests.server.scripted_engine import ScriptedEngine, ScriptedRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    Socket = aiohttp.ClientWebSocketResponse

SCRIPT = ("Hello", " ", "wörld", "!")
TEXT = "".join(SCRIPT)


@asynccontextmanager
async def connected(engine: ScriptedEngine, **config: Any) -> AsyncIterator[tuple[Server, Socket]]:
    async with (
        serving(engine, **config) as server,
        server.session.ws_connect(f"{server.url}/v1/stream") as socket,
    ):
        yield server, socket


@pytest.fixture
async def held() -> AsyncIterator[tuple[Server, Socket]]:
    """The test generates."""
    async with connected(ScriptedEngine()) as pair:
        yield pair


async def generate(socket: Socket, generation_id: Any = "a", **fields: Any) -> None:
    body = fields or {"prompt": "Hi"}
    await socket.send_json({"type": "generate", "id": generation_id, **body})


async def until_end(socket: Socket) -> dict[str, list[Any]]:
    """Messages by id, until each id that was seen has its last."""
    messages: dict[str, list[Any]] = {}
    open_ids: set[str] = set()
    while open_ids or not messages:
        message = await socket.receive_json()
        messages.setdefault(message["id"], []).append(message)
        if message["type"] == "delta":
            open_ids.add(message["id"])
        else:
            open_ids.discard(message["id"])
    return messages


async def error_from(socket: Socket) -> Any:
    message = await socket.receive_json()
    assert message["type"] == "error"
    assert set(message["error"]) == {"message", "type", "param", "code"}
    return message


async def assert_works(server: Server, socket: Socket, generation_id: str = "still works") -> None:
    """The socket takes another generation."""
    await generate(socket, generation_id)
    request = await server.engine.next_request()
    request.emit("yes")
    request.finish()
    messages = (await until_end(socket))[generation_id]
    assert [message["type"] for message in messages] == ["delta", "finish"]


@pytest.mark.parametrize(
    ("fields", "num_prompt_tokens"),
    [({"prompt": "Hi"}, 2), ({"prompt": [1, 2, 3]}, 3), ({"messages": HELLO}, 3)],
)
async def test_generate(fields: Any, num_prompt_tokens: int) -> None:
    async with connected(ScriptedEngine(SCRIPT)) as (_, socket):
        await generate(socket, "a", **fields)
        *deltas, finish = (await until_end(socket))["a"]
        assert "".join(delta["text"] for delta in deltas) == TEXT
        assert finish == {
            "type": "finish",
            "id": "a",
            "finish_reason": "stop",
            "stop_reason": None,
            "usage": {
                "prompt_tokens": num_prompt_tokens,
                "completion_tokens": 4,
                "total_tokens": num_prompt_tokens + 4,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }


async def test_parameters_are_those_of_the_body(held: tuple[Server, Socket]) -> None:
    server, socket = held
    await generate(socket, messages=HELLO, max_tokens=3, temperature=0, stop="x", stream=True)
    request = await server.engine.next_request()
    assert request.params == SamplingParams(max_tokens=3, temperature=0, stop=("x",))


async def test_generations_interleave(held: tuple[Server, Socket]) -> None:
    server, socket = held
    requests: list[ScriptedRequest] = []
    for number in range(20):
        await generate(socket, f"g{number}")
        requests.append(await server.engine.next_request())
    for turn in range(3):
        for number, request in enumerate(requests):
            request.emit(f"{number}.{turn} ")
            await asyncio.sleep(0)
    for request in reversed(requests):
        request.finish()
    messages: dict[str, str] = {f"g{number}": "" for number in range(20)}
    finished: set[str] = set()
    while len(finished) < 20:
        message = await socket.receive_json()
        if message["type"] == "finish":
            finished.add(message["id"])
        else:
            messages[message["id"]] += message["text"]
    assert messages == {f"g{n}": f"{n}.0 {n}.1 {n}.2 " for n in range(20)}


async def test_an_id_is_free_again_after_its_end(held: tuple[Server, Socket]) -> None:
    server, socket = held
    for _ in range(3):
        await assert_works(server, socket, "same")


async def test_cancel(held: tuple[Server, Socket]) -> None:
    server, socket = held
    await generate(socket, "a")
    await generate(socket, "b")
    first, second = [await server.engine.next_request() for _ in range(2)]
    first.emit("x", "y")
    assert (await socket.receive_json())["text"] == "xy"
    await socket.send_json({"type": "cancel", "id": "a"})
    finish = await socket.receive_json()
    assert (finish["type"], finish["id"], finish["finish_reason"]) == ("finish", "a", "abort")
    assert finish["usage"]["completion_tokens"] == 2
    assert first.reason is FinishReason.ABORT
    second.emit("z")
    second.finish()
    assert [message["type"] for message in (await until_end(socket))["b"]] == ["delta", "finish"]
    await assert_works(server, socket, "a")


async def test_cancel_before_admission(held: tuple[Server, Socket]) -> None:
    server, socket = held
    server.engine.may_admit.clear()
    await generate(socket, "a")
    await server.engine.admitting.wait()
    await socket.send_json({"type": "cancel", "id": "a"})
    finish = await socket.receive_json()
    assert (finish["finish_reason"], finish["usage"]["total_tokens"]) == ("abort", 0)
    await server.engine.given_up.wait()
    server.engine.may_admit.set()
    await assert_works(server, socket, "a")


# What is wrong with a message


@pytest.mark.parametrize(
    ("message", "generation_id", "param", "words"),
    [
        ("", None, None, "empty"),
        ("{", None, None, "not valid JSON"),
        ("[]", None, None, "must be a JSON object"),
        ('{"type": "generate", "id": "n", "prompt": NaN}', None, None, "not valid JSON"),
        ({"type": "generate", "prompt": "a"}, None, "id", "1 to 128"),
        ({"type": "generate", "id": "", "prompt": "a"}, None, "id", "1 to 128"),
        ({"type": "generate", "id": 5, "prompt": "a"}, None, "id", "1 to 128"),
        ({"type": "generate", "id": "x" * 129, "prompt": "a"}, None, "id", "1 to 128"),
        ({"type": "generate", "id": "busy", "prompt": "a"}, None, "id", "running"),
        ({"type": "explode", "id": "n"}, None, "type", "generate or cancel"),
        ({"type": ["generate"], "id": "n"}, None, "type", "generate or cancel"),
        ({"id": "n", "prompt": "a"}, None, "type", "generate or cancel"),
        ({"type": "cancel"}, None, "id", "1 to 128"),
        ({"type": "cancel", "id": "n"}, "n", "id", "no generation"),
        ({"type": "cancel", "id": "n", "force": True}, "n", None, "force"),
        ({"type": "generate", "id": "n"}, "n", "prompt", "messages"),
        ({"type": "generate", "id": "n", "prompt": "a", "messages": HELLO}, "n", "prompt", "either"),
        ({"type": "generate", "id": "n", "prompt": ["a"]}, "n", "prompt", "one prompt"),
        ({"type": "generate", "id": "n", "prompt": "a", "stream": False}, "n", "stream", "always"),
        ({"type": "generate", "id": "n", "prompt": "a", "n": 2}, "n", "n", "not supported"),
        ({"type": "generate", "id": "n", "prompt": "a", "temperature": -1}, "n", "temperature", "0 to 100"),
        ({"type": "generate", "id": "n", "prompt": "a", "foo": 1}, "n", "foo", "unknown"),
        ({"type": "generate", "id": "n", "prompt": "a", "model": "other"}, "n", "model", "other"),
        ({"type": "generate", "id": "n", "messages": []}, "n", "messages", "at least one"),
        ({"type": "generate", "id": "n", "prompt": ""}, "n", "prompt", "empty"),
        (
            {"type": "generate", "id": "n", "messages": HELLO, "max_completion_tokens": 10**6},
            "n",
            "max_completion_tokens",
            "max_completion_tokens is 1000000",
        ),
        (b"\x00\x01", None, None, "text messages"),
    ],
)
async def test_wrong_messages(
    held: tuple[Server, Socket], message: Any, generation_id: str | None, param: str | None, words: str
) -> None:
    server, socket = held
    await generate(socket, "busy")
    busy = await server.engine.next_request()
    if isinstance(message, bytes):
        await socket.send_bytes(message)
    else:
        await socket.send_str(message if isinstance(message, str) else json.dumps(message))
    answer = await error_from(socket)
    assert answer["id"] == generation_id
    assert answer["error"]["param"] == param
    assert words in answer["error"]["message"]
    busy.emit("unharmed")
    busy.finish()
    assert [one["type"] for one in (await until_end(socket))["busy"]] == ["delta", "finish"]
    await assert_works(server, socket, "n")


async def test_too_many_generations() -> None:
    async with connected(ScriptedEngine(), ws_max_generations=2) as (server, socket):
        await generate(socket, "a")
        await generate(socket, "b")
        first, _ = [await server.engine.next_request() for _ in range(2)]
        await generate(socket, "c")
        answer = await error_from(socket)
        assert answer["id"] == "c"
        assert answer["error"]["type"] == "rate_limit_error"
        first.finish()
        assert (await socket.receive_json())["type"] == "finish"
        await assert_works(server, socket, "c")


async def test_the_engine_refuses() -> None:
    async with connected(ScriptedEngine(max_waiting=1)) as (server, socket):
        await generate(socket, "a")
        request = await server.engine.next_request()
        await generate(socket, "b")
        assert (await error_from(socket))["error"]["code"] == "overloaded"
        request.finish()


@pytest.mark.parametrize("error", [EngineFailed("lost"), ConsumerTooSlow("nobody read"), ValueError("a bug")])
async def test_failure_on_the_way(held: tuple[Server, Socket], error: Exception) -> None:
    server, socket = held
    await generate(socket, "a")
    request = await server.engine.next_request()
    request.emit("half")
    request.fail(error)
    assert (await socket.receive_json())["text"] == "half"
    answer = await error_from(socket)
    assert answer["id"] == "a"
    assert "a bug" not in answer["error"]["message"]
    await assert_works(server, socket, "a")


async def test_not_ready(held: tuple[Server, Socket]) -> None:
    server, socket = held
    server.engine.state = EngineState.LOADING
    await generate(socket, "a")
    assert "loading" in (await error_from(socket))["error"]["message"]
    server.engine.state = EngineState.READY
    await assert_works(server, socket, "a")


async def test_without_an_upgrade() -> None:
    async with serving(ScriptedEngine()) as server:
        answer = await server.get("/v1/stream")
        assert answer.status == 426
        assert answer.headers["Upgrade"] == "websocket"
        assert "WebSocket" in answer.error["message"]


# Sockets that end


@pytest.mark.parametrize("how", ["close frame", "vanish"])
async def test_closing_cancels(how: str) -> None:
    async with serving(ScriptedEngine()) as server:
        async with RawWebSocket.connect(server.port) as socket:
            for number in range(3):
                socket.send({"type": "generate", "id": str(number), "prompt": "a"})
            requests = [await server.engine.next_request() for _ in range(3)]
            if how == "close frame":
                socket.send(struct.pack(">H", 1000), opcode=8)
            else:
                socket.client.abort()
            for request in requests:
                await request.ended.wait()
                assert request.reason is FinishReason.ABORT
        assert not server.engine.running


async def test_closing_while_admitting() -> None:
    async with serving(ScriptedEngine()) as server, RawWebSocket.connect(server.port) as socket:
        server.engine.may_admit.clear()
        socket.send({"type": "generate", "id": "a", "prompt": "a"})
        await server.engine.admitting.wait()
        socket.client.abort()
        await server.engine.given_up.wait()


async def test_a_message_over_the_limit_closes() -> None:
    async with connected(ScriptedEngine(), max_body_bytes=1000) as (server, socket):
        await generate(socket, "a")
        request = await server.engine.next_request()
        await socket.send_str("x" * 2000)
        message = await socket.receive()
        assert message.type is aiohttp.WSMsgType.CLOSE
        assert message.data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
        await request.ended.wait()


async def test_pings_are_answered() -> None:
    async with serving(ScriptedEngine()) as server, RawWebSocket.connect(server.port) as socket:
        socket.send(b"are you there", opcode=9)
        assert await socket.receive() == (10, b"are you there")


async def test_a_dead_peer_is_noticed() -> None:
    async with (
        serving(ScriptedEngine(), ws_heartbeat_s=0.05) as server,
        RawWebSocket.connect(server.port) as socket,
    ):
        socket.send({"type": "generate", "id": "a", "prompt": "a"})
        request = await server.engine.next_request()
        opcode, _ = await socket.receive()
        assert opcode == 9  # and no pong goes back
        await request.ended.wait()


async def test_shutdown_closes_with_going_away() -> None:
    engine = ScriptedEngine()
    async with serving(engine) as server, server.session.ws_connect(f"{server.url}/v1/stream") as socket:
        await generate(socket, "a")
        request = await engine.next_request()
        down = asyncio.create_task(server.runner.cleanup())
        while not server.app[SERVICE].draining:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)  # long enough for a server that does not wait to close
        request.emit("text")
        request.finish()
        assert [one["type"] for one in (await until_end(socket))["a"]] == ["delta", "finish"]
        message = await socket.receive()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)
        await down


# Sockets that are slow (B70)


async def flood(request: ScriptedRequest, count: int, size: int = 100) -> None:
    """Generate `count` tokens, and let the server send what it can in between."""
    for number in range(count):
        request.emit(f"<{number:06}>" + "x" * size)
        await asyncio.sleep(0)


async def test_a_slow_reader_gets_merged_deltas_and_the_whole_text() -> None:
    async with serving(ScriptedEngine()) as server, RawWebSocket.connect(server.port) as socket:
        socket.send({"type": "generate", "id": "a", "prompt": "a", "max_tokens": 50_000})
        request = await server.engine.next_request()
        await flood(request, 20_000)
        request.finish()
        texts = []
        while (message := await socket.receive_json())["type"] == "delta":
            texts.append(message["text"])
        assert 1 < len(texts) < 5000
        assert "".join(texts) == "".join(f"<{number:06}>" + "x" * 100 for number in range(20_000))
        assert message["usage"]["completion_tokens"] == 20_000


async def test_others_are_not_slowed_by_a_slow_reader() -> None:
    async with connected(ScriptedEngine()) as (server, quick), RawWebSocket.connect(server.port) as slow:
        slow.send({"type": "generate", "id": "a", "prompt": "a", "max_tokens": 50_000})
        await flood(await server.engine.next_request(), 5000)
        await assert_works(server, quick)


async def test_who_reads_nothing_is_closed_with_a_policy_code() -> None:
    async with (
        serving(ScriptedEngine(), write_timeout_s=0.05) as server,
        RawWebSocket.connect(server.port) as socket,
    ):
        socket.send({"type": "generate", "id": "a", "prompt": "a", "max_tokens": 50_000})
        request = await server.engine.next_request()
        while not request.ended.is_set():
            await flood(request, 10, 10_000)
        assert request.reason is FinishReason.ABORT
        opcode = 1
        while opcode == 1:
            opcode, payload = await socket.receive()
        assert opcode == 8
        assert payload[:2] == struct.pack(">H", 1008)
        assert b"not read" in payload


async def test_cancelling_one_blocked_generation_leaves_the_others() -> None:
    """Every writer of a blocked socket waits for the same thing; cancelling one must not cancel them all."""
    async with serving(ScriptedEngine()) as server, RawWebSocket.connect(server.port) as socket:
        for generation_id in ("a", "b"):
            socket.send({"type": "generate", "id": generation_id, "prompt": "a", "max_tokens": 50_000})
        first, second = [await server.engine.next_request() for _ in range(2)]
        await asyncio.gather(flood(first, 5000), flood(second, 5000))
        socket.send({"type": "cancel", "id": "a"})
        await first.ended.wait()
        second.finish()
        ends: dict[str, str] = {}
        text = ""
        while len(ends) < 2:
            message = await socket.receive_json()
            if message["type"] == "finish":
                ends[message["id"]] = message["finish_reason"]
            elif message["id"] == "b":
                text += message["text"]
        assert ends == {"a": "abort", "b": "stop"}
        assert text == "".join(second.texts)


async def test_a_client_that_leaves_before_the_upgrade_is_no_error(
    held: tuple[Server, Socket], caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = held
    async with RawClient.connect(server.port) as client:
        client.send(
            b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        client.writer.write_eof()
        assert await client.reader.read() == b""
    await asyncio.sleep(0.05)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(server.app[SERVICE].sessions) == 1  # the fixture's own
