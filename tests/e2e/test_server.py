"""The default model behind real sockets, asked by the official client and by raw ones."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import openai
import pytest
from aiohttp import web

from aioinfer import Engine, ServerConfig
from aioinfer.server import create_app, make_runner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass(frozen=True)
class Server:
    """A server in this process."""

    engine: Engine
    url: str
    port: int
    client: openai.AsyncOpenAI

    async def settle(self) -> None:
        """Until nothing runs and all blocks are free."""
        while (stats := self.engine.stats()).num_running or stats.num_waiting or stats.num_kv_blocks_used:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(model: Path, **options: Any) -> AsyncIterator[Server]:
    async with Engine(model, kv_cache_tokens=16_384, **options) as engine:
        runner = make_runner(create_app(engine, ServerConfig()))
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            async with openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="none") as client:
                yield Server(engine, f"http://{host}:{port}", port, client)
        finally:
            await runner.cleanup()


@pytest.fixture
async def server(default_model_path: Path) -> AsyncIterator[Server]:
    async with serving(default_model_path) as server:
        yield server


async def test_the_official_client(server: Server) -> None:
    (model,) = (await server.client.models.list()).data
    chat = server.client.chat.completions
    plain = await chat.create(model=model.id, messages=QUESTION, temperature=0, max_tokens=24)
    assert "Paris" in (plain.choices[0].message.content or "")
    assert plain.usage is not None
    stream = await chat.create(
        model=model.id,
        messages=QUESTION,
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.model_dump() == plain.usage.model_dump()
    in_process = await server.engine.chat(QUESTION, temperature=0, max_tokens=24)
    assert in_process.text == text


async def test_prompts_of_every_kind(server: Server) -> None:
    ids = await server.engine.tokenize("Once upon a time")
    create = server.client.completions.create
    options: dict[str, Any] = {"model": "", "temperature": 0, "max_tokens": 8}
    options["model"] = (await server.client.models.list()).data[0].id
    by_text = await create(prompt="Once upon a time", **options)
    by_ids = await create(prompt=ids, **options)
    by_list = await create(prompt=["Once upon a time", "The sky is"], **options)
    by_id_list = await create(prompt=[ids, ids], **options)
    text = by_text.choices[0].text
    assert text
    assert by_ids.choices[0].text == text
    assert [c.index for c in by_list.choices] == [0, 1]
    assert by_list.choices[0].text == text != by_list.choices[1].text
    assert [c.text for c in by_id_list.choices] == [text, text]
    assert by_id_list.usage is not None
    assert by_id_list.usage.prompt_tokens == 2 * len(ids)


async def test_wrong_requests_get_the_clients_own_errors(server: Server) -> None:
    model = (await server.client.models.list()).data[0].id
    chat = server.client.chat.completions
    with pytest.raises(openai.NotFoundError):
        await chat.create(model="another", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await chat.create(model=model, messages=QUESTION, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="context"):
        await server.client.completions.create(model=model, prompt=[1] * 9000)
    with pytest.raises(openai.BadRequestError, match="room for"):
        await server.client.completions.create(model=model, prompt="a", max_tokens=100_000)
    answer = await chat.create(model=model, messages=QUESTION, max_tokens=1)
    assert answer.choices[0].finish_reason == "length"


async def test_a_client_that_leaves_ends_its_request(server: Server) -> None:
    """BUGS B15, streamed and not."""
    body = json.dumps({"prompt": "Count:", "max_tokens": 4000, "ignore_eos": True, "stream": True}).encode()
    for _ in range(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(_post(body))
        await reader.readuntil(b"data: ")
        writer.close()
        await writer.wait_closed()
        await server.settle()
    plain = json.dumps({"prompt": "Count:", "max_tokens": 4000, "ignore_eos": True}).encode()
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(_post(plain))
        while not server.engine.stats().num_running:
            await asyncio.sleep(0.001)
        writer.close()
        await writer.wait_closed()
        await server.settle()


def _post(body: bytes) -> bytes:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_a_socket_carries_many_generations(server: Server) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{server.url}/v1/stream") as socket:
        expected = {}
        for name, prompt in (("a", "The capital of France is"), ("b", "Water is made of")):
            completion = await server.engine.generate(prompt, temperature=0, max_tokens=12)
            expected[name] = completion.text
            await socket.send_json(
                {"type": "generate", "id": name, "prompt": prompt, "temperature": 0, "max_tokens": 12}
            )
        await socket.send_json({"type": "generate", "id": "c", "prompt": "x", "max_tokens": 4000})
        texts = dict.fromkeys("abc", "")
        finished: dict[str, str] = {}
        while len(finished) < 3:
            message = await socket.receive_json()
            if message["type"] == "delta":
                texts[message["id"]] += message["text"]
                if message["id"] == "c" and "c" not in finished:
                    await socket.send_json({"type": "cancel", "id": "c"})
            elif message["type"] == "finish":
                finished[message["id"]] = message["finish_reason"]
        assert finished == {"a": "length", "b": "length", "c": "abort"}
        assert {name: texts[name] for name in "ab"} == expected
        await socket.send_json({"type": "generate", "id": "d", "prompt": "x", "max_tokens": 4000})
        await socket.receive_json()
    await server.settle()


async def test_a_long_prompt_disturbs_nobody(server: Server) -> None:
    """BUGS B68: what runs goes on, and /health answers, while a prompt of 400,000 characters is refused."""
    prompts = [f"Story {i}:" for i in range(8)]
    alone = [await server.engine.generate(p, temperature=0, max_tokens=16) for p in prompts]
    running = [asyncio.create_task(server.engine.generate(p, temperature=0, max_tokens=16)) for p in prompts]
    huge = asyncio.create_task(
        server.client.chat.completions.create(
            model=(await server.client.models.list()).data[0].id,
            messages=[{"role": "user", "content": "many words " * 36_000}],
        )
    )
    async with aiohttp.ClientSession() as session:
        while not huge.done():
            async with session.get(f"{server.url}/health") as response:
                assert response.status == 200
    with pytest.raises(openai.BadRequestError, match="context"):
        await huge
    assert [(await task).text for task in running] == [completion.text for completion in alone]
