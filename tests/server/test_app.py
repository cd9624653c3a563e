"""What surrounds the generation routes: models, health, metrics, request ids, routes that are not there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from aioinfer import Engine, EngineState
from aioinfer.errors import EngineFailed
from aioinfer.server import create_app, make_runner
from tests.server.clients import COMPLETIONS_URL, RawClient, Server, serving
from tests.server.scripted_engine import MAX_MODEL_LEN, MODEL, ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(ScriptedEngine(["a", "b"])) as running:
        yield running


async def test_models(server: Server) -> None:
    listed = (await server.get("/v1/models")).json
    assert listed["object"] == "list"
    [model] = listed["data"]
    assert (model["id"], model["object"], model["owned_by"]) == (MODEL, "model", "aioinfer")
    assert model["max_model_len"] == MAX_MODEL_LEN
    assert (await server.get(f"/v1/models/{MODEL}")).json == model


async def test_another_name_for_the_model() -> None:
    async with serving(ScriptedEngine(["a"]), served_model_name="org/name") as server:
        assert (await server.get("/v1/models/org/name")).json["id"] == "org/name"
        assert (await server.complete(model="org/name")).json["model"] == "org/name"
        assert (await server.complete(model=MODEL)).status == 404


async def test_a_model_that_is_not_served(server: Server) -> None:
    answer = await server.get("/v1/models/other")
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("state", "health", "ready"),
    [
        (EngineState.NEW, 200, 503),
        (EngineState.LOADING, 200, 503),
        (EngineState.READY, 200, 200),
        (EngineState.DRAINING, 200, 503),
        (EngineState.FAILED, 503, 503),
        (EngineState.CLOSED, 200, 503),
    ],
)
async def test_health_and_readiness(server: Server, state: EngineState, health: int, ready: int) -> None:
    server.engine.state = state
    answer = await server.get("/health")
    assert (answer.status, answer.json) == (health, {"state": state.value})
    answer = await server.get("/ready")
    assert (answer.status, answer.json) == (ready, {"state": state.value})
    assert ("Retry-After" in answer.headers) == (ready == 503)


async def test_models_before_there_is_one(server: Server) -> None:
    server.engine.state = EngineState.LOADING
    assert (await server.get("/v1/models")).status == 503


async def test_health_of_a_failed_engine_answers_while_requests_do_not(server: Server) -> None:
    server.engine.state = EngineState.FAILED
    server.engine.failure = EngineFailed("lost")
    for _ in range(3):
        assert (await server.complete()).error["message"] == "lost"
        assert (await server.get("/health")).status == 503


async def test_metrics(server: Server) -> None:
    await server.complete()
    await server.complete(model="other")
    await server.get("/nowhere")
    async with server.session.ws_connect(f"{server.url}/v1/stream"):
        answer = await server.get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    requests = "aioinfer:http_requests_total"
    assert samples[requests, "/v1/completions", "200", "POST"] == 1
    assert samples[requests, "/v1/completions", "404", "POST"] == 1
    assert samples[requests, "404", "GET", "unmatched"] == 1
    assert samples[("aioinfer:websockets",)] == 1
    assert samples["aioinfer:num_requests_running", MODEL] == 0


async def test_unknown_route(server: Server) -> None:
    answer = await server.post("/v1/embeddings", {})
    assert answer.status == 404
    assert answer.error["code"] == "unknown_url"
    assert "/v1/chat/completions" in answer.error["message"]


async def test_wrong_method(server: Server) -> None:
    answer = await server.get(COMPLETIONS_URL)
    assert answer.status == 405
    assert answer.headers["Allow"] == "POST"
    assert answer.error["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", [COMPLETIONS_URL, "/health", "/nowhere"])
async def test_the_clients_request_id_comes_back(server: Server, path: str) -> None:
    for offered in ("abc", "x" * 128, "spaces are fine"):
        answer = await server.post(path, {"prompt": "a"}, headers={"X-Request-Id": offered})
        assert answer.headers["X-Request-Id"] == offered


@pytest.mark.parametrize("offered", [None, "", "x" * 129, "ümlaut", "tab\there"])
async def test_otherwise_there_is_a_new_request_id(server: Server, offered: str | None) -> None:
    headers = {} if offered is None else {"X-Request-Id": offered}
    ids = {
        (await server.post(COMPLETIONS_URL, {"prompt": "a"}, headers=headers)).headers["X-Request-Id"]
        for _ in range(2)
    }
    assert len(ids) == 2
    assert offered not in ids


async def test_streams_and_sockets_have_a_request_id(server: Server) -> None:
    headers = {"X-Request-Id": "abc"}
    answer = await server.post(COMPLETIONS_URL, {"prompt": "a", "stream": True}, headers=headers)
    assert answer.headers["X-Request-Id"] == "abc"
    async with server.session.get(f"{server.url}/v1/stream", headers=headers) as response:
        assert response.headers["X-Request-Id"] == "abc"


async def test_no_http_at_all(server: Server) -> None:
    async with RawClient.connect(server.port) as client:
        client.send(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        assert b" 400 " in await client.read_until(b"\r\n")
    assert (await server.complete()).status == 200


async def test_a_connection_serves_on_after_an_error(server: Server) -> None:
    async with RawClient.connect(server.port) as client:
        client.post(COMPLETIONS_URL, b"{")
        assert b" 400 " in await client.read_until(b"\r\n\r\n")
        await client.read_until(b"}}")
        client.post(COMPLETIONS_URL, {"prompt": "a"})
        assert b" 200 " in await client.read_until(b"\r\n\r\n")


async def test_old_http(server: Server) -> None:
    """HTTP/1.0 knows no chunks; the stream ends with the connection."""
    async with RawClient.connect(server.port) as client:
        body = b'{"prompt": "a", "stream": true}'
        client.send(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert (await client.reader.read(-1)).endswith(b"data: [DONE]\n\n")


async def test_mounted_in_another_application() -> None:
    engine = ScriptedEngine(["a", "b"])
    app = web.Application(client_max_size=10)  # the mounted application has its own bound
    app.add_subapp("/llm", create_app(cast("Engine", engine)))

    async def home(_: web.Request) -> web.Response:
        return web.Response(text="home")

    app.router.add_get("/", home)
    runner = make_runner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/llm/v1/completions", json={"prompt": "a"}) as response:
            assert (await response.json())["choices"][0]["text"] == "ab"
            assert "X-Request-Id" in response.headers
        async with session.get(f"{url}/llm/nowhere") as response:
            assert (await response.json())["error"]["code"] == "unknown_url"
        async with session.get(f"{url}/nowhere") as response:
            assert "json" not in response.content_type
        async with session.get(f"{url}/") as response:
            assert "X-Request-Id" not in response.headers
        async with session.ws_connect(f"{url}/llm/v1/stream") as socket:
            down = asyncio.create_task(runner.cleanup())
            message = await socket.receive()
            assert message.data == aiohttp.WSCloseCode.GOING_AWAY
            await down
    assert engine.state is EngineState.READY  # its life is not the application's
