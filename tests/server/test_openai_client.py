"""The official client, unchanged, asynchronous and synchronous."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import openai
import pytest

from aioinfer import EngineState
from aioinfer.errors import EngineFailed
from tests.server.clients import Server, serving
from tests.server.scripted_engine import MODEL, ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai.types.chat import ChatCompletionMessageParam

SCRIPT = ("Hello", " ", "wörld", "!")
TEXT = "".join(SCRIPT)
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(ScriptedEngine(SCRIPT)) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as asking:
        yield asking


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=16, temperature=0.5, seed=1, stop=["x"], n=1, user="me"
    )
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert answer.usage.prompt_tokens_details is not None
    assert answer._request_id is not None


async def test_streamed_chat(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 10


async def test_the_clients_own_accumulation(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == TEXT


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "Hello "), (1, "Hello ")]
    assert answer.choices[0].finish_reason == "length"
    stream = await client.completions.create(model=MODEL, prompt=[1, 2, 3], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_the_synchronous_client(server: Server) -> None:
    def ask() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            plain = client.chat.completions.create(model=MODEL, messages=MESSAGES)
            stream = client.completions.create(model=MODEL, prompt="a", stream=True)
            return plain.choices[0].message.content, "".join(chunk.choices[0].text for chunk in stream)

    assert await asyncio.to_thread(ask) == (TEXT, TEXT)


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_the_clients_own(server: Server, client: openai.AsyncOpenAI, stream: bool) -> None:
    async def ask(**fields: Any) -> None:
        body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "stream": stream} | fields
        await client.chat.completions.create(**body)

    with pytest.raises(openai.BadRequestError) as bad:
        await ask(temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unsupported:
        await ask(n=2)
    assert (unsupported.value.param, unsupported.value.code) == ("n", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError) as unknown:
        await ask(model="other")
    assert unknown.value.code == "model_not_found"
    server.engine.state = EngineState.LOADING
    with pytest.raises(openai.APIStatusError) as loading:
        await ask()
    assert loading.value.status_code == 503


async def test_overload_is_a_rate_limit_error() -> None:
    async with (
        serving(ScriptedEngine(max_waiting=0)) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.RateLimitError):
            await client.completions.create(model=MODEL, prompt="a")


async def test_a_failure_on_the_way_raises() -> None:
    async with (
        serving(ScriptedEngine()) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        opening = asyncio.create_task(client.completions.create(model=MODEL, prompt="a", stream=True))
        request = await server.engine.next_request()
        stream = await opening
        request.emit("half")
        request.fail(EngineFailed("the device is lost"))
        assert (await anext(stream)).choices[0].text == "half"
        with pytest.raises(openai.APIError, match="the device is lost"):
            await anext(stream)


async def test_leaving_a_stream_ends_the_request() -> None:
    async with (
        serving(ScriptedEngine()) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        opening = asyncio.create_task(client.completions.create(model=MODEL, prompt="a", stream=True))
        request = await server.engine.next_request()
        request.emit("text")
        async with await opening as stream:
            async for _ in stream:
                break
        await request.ended.wait()
