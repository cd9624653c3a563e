"""Benchmark targets behind a network: OpenAI's completions and chat as server-sent events, and our WebSocket.

Works against any server that speaks OpenAI's streaming protocol.  An event that is not JSON, an HTTP error or
a lost connection is the error of its request.  Each request over HTTP has a connection of its own, because
some servers close one after a stream without saying so.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

import aiohttp
import orjson
from prometheus_client.parser import text_string_to_metric_families

from aioinfer.cli.bench.measure import LagBounds, Observation
from aioinfer.errors import AioinferError
from aioinfer.telemetry.metrics import PREFIX
from aioinfer.telemetry.quantiles import bucket_quantile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aioinfer.cli.bench.measure import Target

Api = Literal["completions", "chat", "websocket"]
Buckets = list[tuple[float, float]]

_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError, KeyError, TypeError)


class BenchClient:
    """A session with one server.

    Args:
        url: the server's root, without ``/v1``.
        model: name to send; None asks the server which model it serves.
        api_key: sent as a bearer token when not empty.
        ignore_eos: ask for exactly as many tokens as wanted; an extension of OpenAI's protocol.
    """

    def __init__(self, url: str, *, model: str | None, api_key: str = "", ignore_eos: bool = True) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._ignore_eos = ignore_eos
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
        )

    @property
    def model(self) -> str:
        """The name sent with each request."""
        return self._model or ""

    async def __aenter__(self) -> BenchClient:
        if self._model is None:
            try:
                self._model = await self._first_model()
            except BaseException:
                await self._session.close()
                raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._session.close()

    async def _first_model(self) -> str:
        url = f"{self._url}/v1/models"
        try:
            async with self._session.get(url) as response:
                response.raise_for_status()
                return str(orjson.loads(await response.read())["data"][0]["id"])
        except (*_FAILURES, IndexError) as error:
            raise AioinferError(f"cannot ask {url} which model it serves: {error!r}") from error

    @asynccontextmanager
    async def target(self, api: Api) -> AsyncIterator[Target]:
        """What answers prompts through `api`.

        Raises:
            AioinferError: the server offers no WebSocket where one is asked for.
        """
        if api != "websocket":
            yield _SseTarget(self, self._session, f"{self._url}/v1", chat=api == "chat")
            return
        try:
            socket = await self._session.ws_connect(f"{self._url}/v1/stream", max_msg_size=0)
        except _FAILURES as error:
            raise AioinferError(f"cannot open a WebSocket at {self._url}/v1/stream: {error!r}") from error
        async with _WebSocketTarget(self, socket) as target:
            yield target

    def body(self, prompt: str, output_tokens: int, *, chat: bool) -> dict[str, Any]:
        """A greedy request for `output_tokens` tokens, without its transport's own fields."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": output_tokens, "temperature": 0}
        if chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self._ignore_eos:
            body["ignore_eos"] = True
        return body

    async def loop_lag_buckets(self) -> Buckets | None:
        """The server's loop-lag histogram since it started; None if it has none."""
        try:
            async with self._session.get(f"{self._url}/metrics") as response:
                if response.status != 200:
                    return None
                text = await response.text()
        except _FAILURES as error:
            raise AioinferError(f"cannot read {self._url}/metrics: {error!r}") from error
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        name = f"{PREFIX}loop_lag_seconds_bucket"
        buckets = sorted((float(s.labels["le"]), s.value) for s in samples if s.name == name)
        return buckets or None


def lag_between(before: Buckets | None, after: Buckets | None) -> LagBounds | None:
    """The lag of a server between two readings of its histogram; None if it has none."""
    if before is None or after is None:
        return None
    buckets = [(bound, count - old) for (bound, count), (_, old) in zip(after, before, strict=True)]

    def at_most(q: float) -> float | None:
        bound = bucket_quantile(buckets, q)
        return None if bound is None or bound == float("inf") else 1000 * bound

    return LagBounds(
        count=int(buckets[-1][1]),
        p50_at_most=at_most(0.5),
        p99_at_most=at_most(0.99),
        max_at_most=at_most(1.0),
    )


class _SseTarget:
    def __init__(self, client: BenchClient, session: aiohttp.ClientSession, root: str, *, chat: bool) -> None:
        self._client = client
        self._session = session
        self._chat = chat
        self._url = f"{root}/chat/completions" if chat else f"{root}/completions"

    async def request(self, prompt: str, output_tokens: int) -> Observation:
        body = self._client.body(prompt, output_tokens, chat=self._chat)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        observation = Observation()
        try:
            await self._stream(body, observation)
        except (*_FAILURES, AioinferError) as error:
            observation.ended(error=f"{type(error).__name__}: {error}")
        else:
            observation.ended()
        return observation

    async def _stream(self, body: dict[str, Any], observation: Observation) -> None:
        async with self._session.post(self._url, json=body) as response:
            if response.status != 200:
                raise AioinferError(f"HTTP {response.status}: {(await response.text())[:500]}")
            async for line in response.content:
                if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                    self._observe(orjson.loads(data), observation)

    def _observe(self, event: dict[str, Any], observation: Observation) -> None:
        if "error" in event:
            raise AioinferError(str(event["error"]))
        for choice in event["choices"]:
            if choice["delta"].get("content") if self._chat else choice["text"]:
                observation.saw_text()
        if event.get("usage"):
            _take_usage(observation, event["usage"])


class _WebSocketTarget:
    """All requests share one socket; a reader task hands each message to the request it belongs to."""

    def __init__(self, client: BenchClient, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._client = client
        self._socket = socket
        self._ids = itertools.count()
        self._running: dict[str, tuple[Observation, asyncio.Future[None]]] = {}

    async def __aenter__(self) -> Self:
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._socket.close()
        await self._reader

    async def request(self, prompt: str, output_tokens: int) -> Observation:
        request_id = str(next(self._ids))
        message = orjson.dumps(
            {"type": "generate", "id": request_id, **self._client.body(prompt, output_tokens, chat=False)}
        )
        observation = Observation()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running[request_id] = observation, done
        try:
            await self._socket.send_str(message.decode())
            await done
        except OSError as error:
            observation.ended(error=f"{type(error).__name__}: {error}")
        finally:
            self._running.pop(request_id, None)
        return observation

    async def _read(self) -> None:
        """Read until the socket closes or says something odd; what still runs then has failed."""
        try:
            async for message in self._socket:
                self._observe(orjson.loads(message.data))
            end = f"the WebSocket was closed with code {self._socket.close_code}"
        except (*_FAILURES, AioinferError) as error:
            end = f"{type(error).__name__}: {error}"
            await self._socket.close()
        for request_id in list(self._running):
            self._finish(request_id, error=end)

    def _finish(self, request_id: str, error: str | None = None) -> None:
        observation, done = self._running.pop(request_id)
        observation.ended(error)
        if not done.done():
            done.set_result(None)

    def _observe(self, event: dict[str, Any]) -> None:
        request_id = event.get("id")
        if request_id not in self._running:
            raise AioinferError(f"unexpected message on the WebSocket: {event}")
        observation, _ = self._running[request_id]
        match event["type"]:
            case "delta":
                if event.get("text"):
                    observation.saw_text()
            case "finish":
                _take_usage(observation, event["usage"])
                self._finish(request_id)
            case "error":
                self._finish(request_id, error=str(event["error"]))


def _take_usage(observation: Observation, usage: dict[str, Any]) -> None:
    observation.prompt_tokens = usage["prompt_tokens"]
    observation.completion_tokens = usage["completion_tokens"]
    details = usage.get("prompt_tokens_details") or {}
    observation.cached_tokens = details.get("cached_tokens")
