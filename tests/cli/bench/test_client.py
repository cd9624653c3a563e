"""The network targets against a server written here: what they count, and how they fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from aioinfer.cli.bench.client import BenchClient, lag_between
from aioinfer.errors import AioinferError
from aioinfer.telemetry.metrics import EngineStats, Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

USAGE = {
    "prompt_tokens": 4,
    "completion_tokens": 3,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 2},
}
STATS = EngineStats(
    num_running=0, num_waiting=0, num_preempted=0, num_kv_blocks=0, num_kv_blocks_used=0, waiting_tokens=0
)


class FakeServer:
    """Answers with two events of text, or as `events` and `status` say."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.url = ""
        self.status = 200
        self.events: list[bytes] | None = None
        self.metrics = Metrics(lambda: STATS, "m")
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_get("/metrics", self.scrape)
        self.app.router.add_post("/v1/completions", self.completions)
        self.app.router.add_post("/v1/chat/completions", self.chat)
        self.app.router.add_get("/v1/stream", self.websocket)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "served"}]})

    async def scrape(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics.render()[0])

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request, [{"text": ""}, {"text": "a"}, {"text": "bc"}])

    async def chat(self, request: web.Request) -> web.StreamResponse:
        deltas: list[dict[str, Any]] = [
            {"role": "assistant", "content": ""},
            {"content": "a"},
            {"content": "bc"},
            {},
        ]
        return await self.answer(request, [{"delta": delta} for delta in deltas])

    async def answer(self, request: web.Request, choices: list[dict[str, Any]]) -> web.StreamResponse:
        self.bodies.append(await request.json())
        if self.status != 200:
            return web.json_response({"error": {"message": "no room"}}, status=self.status)
        response = web.StreamResponse()
        await response.prepare(request)
        objects = [{"choices": [choice]} for choice in choices] + [{"choices": [], "usage": USAGE}]
        events = self.events or [orjson.dumps(event) for event in objects] + [b"[DONE]"]
        await response.write(b": a comment\n\n")
        for event in events:
            await response.write(b"data: " + event + b"\n\n")
        return response

    async def websocket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            assert message.type is WSMsgType.TEXT
            body = message.json()
            self.bodies.append(body)
            match body["prompt"]:
                case "bad":
                    await socket.send_json(
                        {"type": "error", "id": body["id"], "error": {"message": "no room"}}
                    )
                case "close":
                    await socket.close(code=1013)
                case "noise":
                    await socket.send_json({"type": "delta", "id": "unknown", "text": "x"})
                case _:
                    for text in ("", "a", "bc"):
                        await socket.send_json({"type": "delta", "id": body["id"], "text": text})
                    await socket.send_json({"type": "finish", "id": body["id"], "usage": USAGE})
        return socket


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    async with TestServer(fake.app) as running:
        fake.url = str(running.make_url("")).rstrip("/")
        yield fake


def client_of(server: FakeServer, **options: Any) -> BenchClient:
    return BenchClient(server.url, **{"model": None, **options})


@pytest.mark.parametrize("api", ["completions", "chat", "websocket"])
async def test_counts_events_with_text_and_takes_usage(server: FakeServer, api: Any) -> None:
    async with client_of(server) as client, client.target(api) as target:
        observations = await asyncio.gather(*(target.request("hello", 5) for _ in range(4)))
    for observation in observations:
        assert observation.error is None
        assert (observation.num_events, len(observation.gaps_s)) == (2, 1)
        assert (observation.prompt_tokens, observation.completion_tokens, observation.cached_tokens) == (
            4,
            3,
            2,
        )
        assert observation.first_s is not None
        assert observation.end_s is not None
        assert observation.start_s < observation.first_s < observation.end_s
    for body in server.bodies:
        assert body["model"] == "served"
        assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (5, 0, True)


async def test_without_ignore_eos_and_with_a_model(server: FakeServer) -> None:
    async with client_of(server, model="m", ignore_eos=False) as client, client.target("chat") as target:
        await target.request("hello", 5)
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]
    assert server.bodies[0]["model"] == "m"
    assert "ignore_eos" not in server.bodies[0]


async def test_refused(server: FakeServer) -> None:
    server.status = 429
    async with client_of(server) as client, client.target("completions") as target:
        observation = await target.request("hello", 5)
    assert observation.error is not None
    assert "HTTP 429" in observation.error
    assert "no room" in observation.error


@pytest.mark.parametrize(
    ("event", "message"),
    [(b'{"error": {"message": "broken"}}', "broken"), (b"{", "JSONDecodeError"), (b"{}", "KeyError")],
)
async def test_broken_stream(server: FakeServer, event: bytes, message: str) -> None:
    server.events = [event]
    async with client_of(server) as client, client.target("completions") as target:
        observation = await target.request("hello", 5)
    assert observation.error is not None
    assert message in observation.error


@pytest.mark.parametrize(
    ("prompt", "message"), [("bad", "no room"), ("close", "1013"), ("noise", "unexpected")]
)
async def test_websocket_failures(server: FakeServer, prompt: str, message: str) -> None:
    async with client_of(server) as client, client.target("websocket") as target:
        observation = await target.request(prompt, 5)
        assert observation.error is not None
        assert message in observation.error
        after = await target.request("hello", 5)
        assert (after.error is None) == (prompt == "bad")


async def test_nobody_listens(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(AioinferError, match=r"cannot ask .* which model it serves"):
        async with BenchClient(url, model=None):
            pass
    async with BenchClient(url, model="m") as client:
        with pytest.raises(AioinferError, match="cannot open a WebSocket"):
            async with client.target("websocket"):
                pass
        with pytest.raises(AioinferError, match=r"cannot read .*/metrics"):
            await client.loop_lag_buckets()
        async with client.target("completions") as target:
            observation = await target.request("hello", 1)
            assert observation.error is not None


async def test_lag_of_the_server(server: FakeServer) -> None:
    async with client_of(server) as client:
        server.metrics.loop_lag.observe(0.9)
        before = await client.loop_lag_buckets()
        for _ in range(99):
            server.metrics.loop_lag.observe(0.0002)
        server.metrics.loop_lag.observe(0.02)
        lag = lag_between(before, await client.loop_lag_buckets())
    assert lag is not None
    assert (lag.count, lag.p50_at_most, lag.p99_at_most, lag.max_at_most) == (100, 0.25, 0.25, 25.0)


async def test_server_without_metrics(server: FakeServer) -> None:
    async with BenchClient(f"{server.url}/elsewhere", model="m") as client:
        assert await client.loop_lag_buckets() is None
    assert lag_between(None, None) is None
