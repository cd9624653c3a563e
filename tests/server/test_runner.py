"""`serve`: up before the model, and down in order; on both kinds of loop, with real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import pytest
import uvloop

from aioinfer import Engine, EngineState, FinishReason, SamplingParams, ServerConfig
from aioinfer.errors import ConfigError, CorruptWeights
from aioinfer.server import make_runner, runner, serve
from tests.server.clients import COMPLETIONS_URL, Answer, RawClient
from tests.server.scripted_engine import ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Runs a coroutine on one kind of loop."""
    with asyncio.Runner(loop_factory=request.param) as loop_runner:
        yield loop_runner.run


def kill(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


class Serving:
    """A `serve` that runs in a task, and a client of it."""

    def __init__(self, engine: ScriptedEngine, port: int, session: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.port = port
        self.session = session
        self.ready = asyncio.Event()
        self.url = f"http://127.0.0.1:{port}"
        self.announced: list[str] = []
        self.task: asyncio.Task[signal.Signals]

    def start(self) -> None:
        config = ServerConfig(port=self.port)
        self.task = asyncio.create_task(serve(cast("Engine", self.engine), config, on_ready=self._on_ready))

    def _on_ready(self, url: str) -> None:
        self.announced.append(url)
        self.ready.set()

    async def get(self, path: str) -> Answer:
        async with self.session.get(self.url + path) as response:
            return await Answer.of(response)

    async def post(self, **fields: Any) -> Answer:
        async with self.session.post(self.url + COMPLETIONS_URL, json={"prompt": "a"} | fields) as response:
            return await Answer.of(response)


@asynccontextmanager
async def starting(engine: ScriptedEngine) -> AsyncIterator[Serving]:
    """A server that has begun to load its model."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with aiohttp.ClientSession() as session:
        serving = Serving(engine, port, session)
        serving.start()
        await engine.loading.wait()
        try:
            yield serving
        finally:
            if not serving.task.done():
                serving.task.cancel()
                await asyncio.wait([serving.task])


@asynccontextmanager
async def started(engine: ScriptedEngine) -> AsyncIterator[Serving]:
    """A server that takes requests."""
    engine.may_load.set()
    async with starting(engine) as serving:
        await serving.ready.wait()
        yield serving


def new_engine(script: Any = None, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(script, state=EngineState.NEW, **options)


def test_answers_while_the_model_loads(run: Any) -> None:
    async def main() -> None:
        engine = new_engine(["a", "b"])
        async with starting(engine) as serving:
            assert (await serving.get("/health")).status == 200
            answer = await serving.get("/ready")
            assert (answer.status, answer.json) == (503, {"state": "loading"})
            assert (await serving.post()).status == 503
            assert not serving.announced
            engine.may_load.set()
            await serving.ready.wait()
            assert serving.announced == [serving.url]
            assert (await serving.get("/ready")).status == 200
            assert (await serving.post()).json["choices"][0]["text"] == "ab"

    run(main())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_handlers_are_as_before(run: Any, number: signal.Signals) -> None:
    async def main() -> None:
        before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
        engine = new_engine()
        async with started(engine) as serving:
            assert signal.getsignal(number) not in before
            kill(number)
            assert await serving.task is number
        assert engine.state is EngineState.CLOSED
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before

    run(main())


def test_running_requests_finish_and_new_ones_are_refused(run: Any) -> None:
    async def main() -> None:
        engine = new_engine()
        async with started(engine) as serving, RawClient.connect(serving.port) as bystander:
            plain = asyncio.create_task(serving.post())
            first = await engine.next_request()
            streamed = asyncio.create_task(serving.post(stream=True))
            second = await engine.next_request()
            async with serving.session.ws_connect(f"{serving.url}/v1/stream") as websocket:
                await websocket.send_json({"type": "generate", "id": "a", "prompt": "a"})
                third = await engine.next_request()
                kill()
                while engine.state is not EngineState.DRAINING:
                    await asyncio.sleep(0)
                # A connection that is open still gets answers; there are no new ones.
                bystander.send(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
                head = await bystander.read_until(b"\r\n\r\n")
                assert b" 503 " in head
                assert b"Connection: close" in head
                assert b'{"state":"draining"}' in await bystander.reader.read(-1)
                with pytest.raises(OSError):
                    await asyncio.open_connection("127.0.0.1", serving.port)
                await websocket.send_json({"type": "generate", "id": "b", "prompt": "a"})
                assert (await websocket.receive_json())["error"]["code"] == "unavailable"
                for request in (first, second, third):
                    request.emit("text")
                    request.finish()
                assert (await plain).json["choices"][0]["text"] == "text"
                assert (await streamed).events[-1] == "[DONE]"
                assert [(await websocket.receive_json())["type"] for _ in range(2)] == ["delta", "finish"]
                assert (await websocket.receive()).data == aiohttp.WSCloseCode.GOING_AWAY
            assert await serving.task is signal.SIGTERM

    run(main())


def test_what_outlives_the_drain_ends_with_an_error(run: Any) -> None:
    async def main() -> None:
        engine = new_engine(drain_s=0.02)
        async with started(engine) as serving:
            plain = asyncio.create_task(serving.post())
            first = await engine.next_request()
            streamed = asyncio.create_task(serving.post(stream=True))
            second = await engine.next_request()
            second.emit("half")
            async with serving.session.ws_connect(f"{serving.url}/v1/stream") as websocket:
                await websocket.send_json({"type": "generate", "id": "a", "prompt": "a"})
                await engine.next_request()
                kill()
                answer = await plain
                assert (answer.status, answer.error["code"]) == (503, "unavailable")
                text, failure = (await streamed).events
                assert text["choices"][0]["text"] == "half"
                assert "shutting down" in failure["error"]["message"]
                assert (await websocket.receive_json())["finish_reason"] == "abort"
                assert (await websocket.receive()).data == aiohttp.WSCloseCode.GOING_AWAY
            assert await serving.task is signal.SIGTERM
            assert first.reason is FinishReason.ABORT

    run(main())


def test_a_second_signal_stops_at_once(run: Any) -> None:
    async def main() -> None:
        engine = new_engine(drain_s=3600)
        async with started(engine) as serving, RawClient.connect(serving.port) as client:
            client.post(COMPLETIONS_URL, {"prompt": "a", "stream": True})
            request = await engine.next_request()
            await client.read_until(b"\r\n\r\n")
            kill(signal.SIGINT)
            while engine.state is not EngineState.DRAINING:
                await asyncio.sleep(0)
            kill(signal.SIGTERM)
            assert await serving.task is signal.SIGINT
            assert request.reason is FinishReason.ABORT

    run(main())


def test_at_once_means_also_for_who_does_not_read(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "make_runner", partial(make_runner, shutdown_timeout_s=3600))

    async def main() -> None:
        engine = new_engine(drain_s=3600)
        async with started(engine) as serving, RawClient.connect(serving.port, buffer_bytes=4096) as client:
            client.post(COMPLETIONS_URL, {"prompt": "a", "stream": True, "max_tokens": 50_000})
            request = await engine.next_request()
            for _ in range(1000):
                request.emit("x" * 1000)
                await asyncio.sleep(0)
            kill()
            while engine.state is not EngineState.DRAINING:
                await asyncio.sleep(0)
            kill()
            await serving.task

    run(main())


def test_at_once_means_also_for_requests_of_the_program_itself(run: Any) -> None:
    async def main() -> None:
        engine = new_engine(drain_s=3600)
        async with (
            started(engine) as serving,
            engine.stream("a", SamplingParams(), request_id="own") as stream,
        ):
            kill()
            while engine.state is not EngineState.DRAINING:
                await asyncio.sleep(0)
            kill()
            await serving.task
            assert (await anext(stream)).finish_reason is FinishReason.ABORT

    run(main())


def test_a_signal_while_loading_gives_up(run: Any) -> None:
    async def main() -> None:
        engine = new_engine()
        async with starting(engine) as serving:
            kill()
            assert await serving.task is signal.SIGTERM
            assert engine.state is EngineState.CLOSED
            assert not serving.announced

    run(main())


def test_a_model_that_cannot_be_loaded(run: Any) -> None:
    async def main() -> None:
        before = signal.getsignal(signal.SIGTERM)
        engine = new_engine()
        engine.load_error = CorruptWeights("the file is cut short")
        async with starting(engine) as serving:
            engine.may_load.set()
            with pytest.raises(CorruptWeights):
                await serving.task
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", serving.port)
        assert signal.getsignal(signal.SIGTERM) is before

    run(main())


def test_an_address_in_use(run: Any) -> None:
    async def main() -> None:
        engine = new_engine()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
                await serve(cast("Engine", engine), ServerConfig(port=port))
        assert engine.state is EngineState.NEW

    run(main())


def test_cancelling_serve_closes_the_engine_without_a_drain(run: Any) -> None:
    async def main() -> None:
        engine = new_engine(drain_s=3600)
        async with started(engine) as serving, RawClient.connect(serving.port) as client:
            client.post(COMPLETIONS_URL, {"prompt": "a"})
            request = await engine.next_request()
            serving.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving.task
            assert request.reason is FinishReason.ABORT
            assert engine.state is EngineState.CLOSED

    run(main())
