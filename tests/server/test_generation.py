"""Completions and chat over HTTP: answers, streams, errors, and clients that leave."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from aioinfer import EngineState, FinishReason, SamplingParams
from aioinfer.errors import ConsumerTooSlow, EngineFailed, InvalidRequest
from tests.server.clients import CHAT_URL, COMPLETIONS_URL, HELLO, RawClient, Server, serving
from tests.server.scripted_engine import MAX_MODEL_LEN, MODEL, VOCAB_SIZE, ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SCRIPT = ("Hello", " ", "wörld", "!")
TEXT = "".join(SCRIPT)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Every request is answered from the script."""
    async with serving(ScriptedEngine(SCRIPT)) as running:
        yield running


@pytest.fixture
async def held() -> AsyncIterator[Server]:
    """The test generates."""
    async with serving(ScriptedEngine()) as running:
        yield running


def check_common(answer: Any, *, object_name: str, prefix: str) -> None:
    assert answer["id"].startswith(prefix)
    assert answer["object"] == object_name
    assert answer["model"] == MODEL
    assert isinstance(answer["created"], int)
    assert answer["system_fingerprint"].startswith("fp_")


# Answers


async def test_completion(server: Server) -> None:
    answer = (await server.complete("Hi", model=MODEL)).json
    check_common(answer, object_name="text_completion", prefix="cmpl-")
    assert answer["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 4,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_chat(server: Server) -> None:
    answer = (await server.chat()).json
    check_common(answer, object_name="chat.completion", prefix="chatcmpl-")
    message = {"role": "assistant", "content": TEXT, "refusal": None}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"]["total_tokens"] == 7


async def test_length_is_told(server: Server) -> None:
    answer = (await server.complete(max_tokens=2)).json
    assert answer["choices"][0]["text"] == "Hello "
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_several_prompts(server: Server) -> None:
    answer = (await server.complete(["a", "bb", "ccc"])).json
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["text"] for choice in answer["choices"]} == {TEXT}
    assert answer["usage"]["prompt_tokens"] == 6
    assert answer["usage"]["completion_tokens"] == 12


async def test_choices_keep_the_order_of_prompts(held: Server) -> None:
    asking = asyncio.create_task(held.complete([[1], [2, 2]]))
    first, second = [await held.engine.next_request() for _ in range(2)]
    assert (first.prompt_ids, second.prompt_ids) == ([1], [2, 2])
    second.emit("second")
    second.finish()
    first.emit("first")
    first.finish(FinishReason.LENGTH)
    choices = (await asking).json["choices"]
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [
        ("first", "length"),
        ("second", "stop"),
    ]


async def test_parameters_reach_the_engine(held: Server) -> None:
    body = {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 2**62,
        "stop": ["x", "yy"],
        "stop_token_ids": [4],
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    asking = asyncio.create_task(held.complete([3, 4], **body))
    request = await held.engine.next_request()
    request.finish()
    assert (await asking).status == 200
    assert request.prompt_ids == [3, 4]
    assert request.params == SamplingParams(
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        seed=2**62,
        stop=("x", "yy"),
        stop_token_ids=(4,),
        ignore_eos=True,
        skip_special_tokens=False,
    )


@pytest.mark.parametrize(
    ("url", "body", "max_tokens"),
    [
        (COMPLETIONS_URL, {"prompt": "a"}, 16),
        (COMPLETIONS_URL, {"prompt": "a", "max_tokens": None}, 16),
        (CHAT_URL, {"messages": HELLO}, None),
        (CHAT_URL, {"messages": HELLO, "max_tokens": 7}, 7),
        (CHAT_URL, {"messages": HELLO, "max_completion_tokens": 8}, 8),
    ],
)
async def test_defaults_are_openais(held: Server, url: str, body: Any, max_tokens: int | None) -> None:
    asking = asyncio.create_task(held.post(url, body))
    request = await held.engine.next_request()
    request.finish()
    await asking
    assert request.params == SamplingParams(max_tokens=max_tokens, temperature=1.0, top_p=1.0)


async def test_what_asks_for_nothing_is_accepted(server: Server) -> None:
    answer = await server.chat(
        n=1,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        logprobs=False,
        top_logprobs=None,
        tools=None,
        tool_choice="none",
        response_format={"type": "text"},
        user="someone",
        metadata={"a": "b"},
        temperature=None,
        stream=None,
        stop=None,
    )
    assert answer.status == 200


async def test_a_message_can_be_sent_back_as_it_came(server: Server) -> None:
    message = (await server.chat()).json["choices"][0]["message"]
    sent = [*HELLO, message | {"tool_calls": None, "function_call": None, "audio": None}, *HELLO]
    assert (await server.chat(sent)).status == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "a/b;charset=x"])
async def test_the_content_type_does_not_matter(server: Server, content_type: str) -> None:
    answer = await server.post(COMPLETIONS_URL, {"prompt": "a"}, headers={"Content-Type": content_type})
    assert answer.status == 200


async def test_compressed_body(server: Server) -> None:
    body = gzip.compress(orjson.dumps({"prompt": "a"}))
    assert (await server.post(COMPLETIONS_URL, body, headers={"Content-Encoding": "gzip"})).status == 200


# Streams


async def test_streamed_completion(server: Server) -> None:
    answer = await server.complete(stream=True)
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Accel-Buffering"] == "no"
    *chunks, last, done = answer.events
    assert done == "[DONE]"
    for chunk in [*chunks, last]:
        check_common(chunk, object_name="text_completion", prefix="cmpl-")
        assert "usage" not in chunk
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert last["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]


async def test_streamed_chat(server: Server) -> None:
    first, *chunks, last, done = (await server.chat(stream=True)).events
    assert done == "[DONE]"
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    for chunk in [first, *chunks, last]:
        check_common(chunk, object_name="chat.completion.chunk", prefix="chatcmpl-")
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == TEXT
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]


@pytest.mark.parametrize("url", [CHAT_URL, COMPLETIONS_URL])
async def test_usage_in_the_stream(server: Server, url: str) -> None:
    body = {"prompt": "Hi"} if url == COMPLETIONS_URL else {"messages": HELLO}
    answer = await server.post(url, body | {"stream": True, "stream_options": {"include_usage": True}})
    *chunks, usage, done = answer.events
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4


async def test_several_prompts_interleave_with_their_index(held: Server) -> None:
    asking = asyncio.create_task(
        held.complete(["a", "b"], stream=True, stream_options={"include_usage": True})
    )
    first, second = [await held.engine.next_request() for _ in range(2)]
    for request, text in ((second, "2a"), (first, "1a"), (second, "2b"), (first, "1b")):
        request.emit(text)
    second.finish()
    first.finish(FinishReason.LENGTH)
    *chunks, usage, done = (await asking).events
    assert done == "[DONE]"
    texts, reasons = ["", ""], [None, None]
    for chunk in chunks:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert texts == ["1a1b", "2a2b"]
    assert reasons == ["length", "stop"]
    assert usage["usage"]["completion_tokens"] == 4


async def test_what_merged_is_one_event(held: Server) -> None:
    asking = asyncio.create_task(held.complete(stream=True))
    request = await held.engine.next_request()
    request.emit("a", "b", "", "c")
    request.finish()
    chunk, _last, _done = (await asking).events
    assert chunk["choices"][0]["text"] == "abc"


async def test_a_token_without_text_sends_nothing(held: Server) -> None:
    asking = asyncio.create_task(held.chat(stream=True))
    request = await held.engine.next_request()
    request.emit("")
    request.finish()
    events = (await asking).events
    assert [event["choices"][0]["delta"].get("role") for event in events[:-1]] == ["assistant", None]


async def test_each_event_is_sent_when_it_happens(held: Server) -> None:
    async with RawClient.connect(held.port) as client:
        client.post(COMPLETIONS_URL, {"prompt": "a", "stream": True})
        request = await held.engine.next_request()
        await client.read_until(b"\r\n\r\n")
        for text in ("one", "two", "three"):
            request.emit(text)
            assert text.encode() in await client.read_until(b"\n\n")


async def test_silence_is_filled_with_comments() -> None:
    async with (
        serving(ScriptedEngine(), sse_keepalive_s=0.02) as server,
        RawClient.connect(server.port) as client,
    ):
        client.post(COMPLETIONS_URL, {"prompt": "a", "stream": True})
        request = await server.engine.next_request()
        for _ in range(2):
            await client.read_until(b": keep-alive\n\n")
        request.emit("text")
        request.finish()
        rest = await client.read_until(b"data: [DONE]\n\n")
        assert b'"text":"text"' in rest


# Failures


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"", None, "empty"),
        (b"   ", None, "empty"),
        (b"{", None, "not valid JSON"),
        (b'{"prompt": "a",}', None, "not valid JSON"),
        (b"[1, 2]", None, "must be a JSON object, got a list"),
        (b'"text"', None, "got a string"),
        (b"null", None, "got null"),
        (b'{"prompt": "\xff"}', None, "not valid JSON"),
        (b'{"prompt": "\\ud800"}', None, "not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', None, "not valid JSON"),
        (b'{"prompt": "a", "temperature": 1e400}', None, "not valid JSON"),
        (b"[" * 100_000, None, "not valid JSON"),
        (b'{"prompt": "a", "seed": 18446744073709551616}', "seed", "64 bits"),
        (b'{"prompt": "a", "seed": 9223372036854775808}', "seed", "9223372036854775807"),
        (b'{"prompt": "a", "seed": -1}', "seed", "from 0 to"),
        (b'{"prompt": [1, 18446744073709551616]}', "prompt[1]", "number 1.8446744073709552e+19"),
        (b'{"prompt": "a", "temperature": -1}', "temperature", "0 to 100"),
        (b'{"prompt": "a", "temperature": "1"}', "temperature", "valid number"),
        (b'{"prompt": "a", "temperature": true}', "temperature", "valid number"),
        (b'{"prompt": "a", "top_p": 0}', "top_p", "above 0"),
        (b'{"prompt": "a", "max_tokens": 1.5}', "max_tokens", "valid integer"),
        (b'{"prompt": "a", "max_tokens": "5"}', "max_tokens", "valid integer"),
        (b'{"prompt": "a", "max_tokens": 0}', "max_tokens", "at least 1"),
        (b'{"prompt": "a", "max_tokens": 1000000}', "max_tokens", str(MAX_MODEL_LEN)),
        (b'{"prompt": "a", "stop": [1]}', "stop[0]", "valid string"),
        (b'{"prompt": "a", "stop": ""}', "stop", "strings of"),
        (b'{"prompt": "a", "stop": {"a": 1}}', "stop", "valid list"),
        (b'{"prompt": "a", "stop_token_ids": ["x"]}', "stop_token_ids[0]", "valid integer"),
        (b'{"prompt": "a", "stream": 1}', "stream", "valid boolean"),
        (b'{"prompt": "a", "stream_options": {"include_usage": true}}', "stream_options", "stream: true"),
        (
            b'{"prompt": "a", "stream": true, "stream_options": {"usage": true}}',
            "stream_options.usage",
            "include_usage",
        ),
        (b'{"prompt": "a", "metadata": {"a": 1}}', "metadata.a", "valid string"),
        (b'{"prompt": "a", "temprature": 1}', "temprature", "did you mean temperature"),
        (b'{"prompt": "a", "frobnicate": 1}', "frobnicate", "known are"),
        (b'{"max_tokens": 1}', "prompt", "required"),
        (b'{"prompt": null}', "prompt", "got null"),
        (b'{"prompt": 5}', "prompt", "a string, a list of token ids"),
        (b'{"prompt": {}}', "prompt", "got an object"),
        (b'{"prompt": ["a", 1]}', "prompt[1]", "is the number 1"),
        (b'{"prompt": [1, true]}', "prompt[1]", "is a boolean"),
        (b'{"prompt": [[1], [2, "x"]]}', "prompt[1][1]", "is a string"),
        (b'{"prompt": ""}', "prompt", "empty"),
        (b'{"prompt": []}', "prompt", "empty"),
        (b'{"prompt": [""]}', "prompt[0]", "prompt[0] is empty"),
        (b'{"prompt": [[]]}', "prompt[0]", "prompt[0] is empty"),
        (b'{"prompt": ["a", ""]}', "prompt[1]", "prompt[1] is empty"),
        (b'{"prompt": [-1]}', "prompt[0]", f"0 to {VOCAB_SIZE - 1}"),
        (b'{"prompt": [[1], [5000]]}', "prompt[1][0]", "prompt[1][0] is 5000; token ids go from 0 to"),
        (b'{"prompt": [%s]}' % b",".join([b'"a"'] * 257), "prompt", "at most 256"),
        (b'{"prompt": "a", "logit_bias": {"99999999": 5}}', "logit_bias", "not supported"),
        (b'{"prompt": "a", "logit_bias": {"AI": -100}}', "logit_bias", "not supported"),
        (b'{"prompt": "a", "n": 2}', "n", "only null or 1"),
        (b'{"prompt": "a", "n": true}', "n", "only null or 1"),
        (b'{"prompt": "a", "best_of": 3}', "best_of", "not supported"),
        (b'{"prompt": "a", "echo": true}', "echo", "only null or false"),
        (b'{"prompt": "a", "echo": 0}', "echo", "only null or false"),
        (b'{"prompt": "a", "logprobs": 0}', "logprobs", "not supported"),
        (b'{"prompt": "a", "suffix": "z"}', "suffix", "not supported"),
        (b'{"prompt": "a", "presence_penalty": 0.5}', "presence_penalty", "not supported"),
        (b'{"prompt": "a", "response_format": {"type": "json_object"}}', "response_format", "not supported"),
    ],
)
async def test_bad_completion_bodies(server: Server, body: bytes, param: str | None, words: str) -> None:
    answer = await server.post(COMPLETIONS_URL, body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] == param
    assert words in answer.error["message"]
    assert (await server.complete()).status == 200


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least one"),
        ({"messages": "Hi"}, "messages", "list"),
        ({"messages": None}, "messages", "list"),
        ({"messages": ["Hi"]}, "messages[0]", "object"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role", "must be one of"),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages[0].role", "'wizard'"),
        ({"messages": [{"role": ["user"], "content": "Hi"}]}, "messages[0].role", "must be one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "string or a list of text parts"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "got int"),
        (
            {"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content[0]",
            "image_url",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "contents": "b"}]},
            "messages[0].contents",
            "content",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}]},
            "messages[0].tool_calls",
            "not supported",
        ),
        ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice", "not supported"),
        ({"messages": HELLO, "logprobs": True}, "logprobs", "not supported"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs", "not supported"),
        ({"messages": HELLO, "functions": [{}]}, "functions", "not supported"),
        ({"messages": HELLO, "modalities": ["audio"]}, "modalities", "not supported"),
        ({"messages": HELLO, "audio": {"voice": "x"}}, "audio", "not supported"),
        ({"messages": HELLO, "store": True}, "store", "not supported"),
        (
            {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 2},
            "max_completion_tokens",
            "give one",
        ),
        ({"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
        (
            {"messages": HELLO, "max_completion_tokens": 10**6},
            "max_completion_tokens",
            "max_completion_tokens is 1000000",
        ),
        ({"messages": HELLO, "prompt": "a"}, "prompt", "unknown parameter"),
        ({"prompt": "a"}, "prompt", "unknown parameter"),
        ({}, "messages", "required"),
    ],
)
async def test_bad_chat_bodies(server: Server, fields: Any, param: str, words: str) -> None:
    answer = await server.post(CHAT_URL, fields)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert words in answer.error["message"]


async def test_prompt_over_the_context(server: Server) -> None:
    answer = await server.complete([1] * MAX_MODEL_LEN)
    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
    assert str(MAX_MODEL_LEN) in answer.error["message"]


async def test_of_duplicate_keys_the_last_wins(held: Server) -> None:
    body = b'{"prompt": "a", "max_tokens": 3, "max_tokens": 9}'
    asking = asyncio.create_task(held.post(COMPLETIONS_URL, body))
    request = await held.engine.next_request()
    request.finish()
    await asking
    assert request.params.max_tokens == 9


async def test_unknown_model(server: Server) -> None:
    answer = await server.complete(model="gpt-4")
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert "'gpt-4'" in answer.error["message"]
    assert repr(MODEL) in answer.error["message"]


async def test_the_template_says_no(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidRequest("System role not supported", param="messages")

    monkeypatch.setattr(server.engine, "stream_chat", refuse)
    answer = await server.chat()
    assert answer.status == 400
    assert answer.error["message"] == "System role not supported"


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_over_the_limit(chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async with serving(ScriptedEngine(SCRIPT), max_body_bytes=1000) as server:
        data = pieces() if chunked else b" " * 2000
        async with server.session.post(server.url + COMPLETIONS_URL, data=data) as response:
            assert response.status == 413
            error = (await response.json())["error"]
        assert error["code"] == "body_too_large"
        assert "1000 bytes" in error["message"]
        assert (await server.complete()).status == 200


async def test_compressed_body_over_the_limit() -> None:
    async with serving(ScriptedEngine(SCRIPT), max_body_bytes=1000) as server:
        body = gzip.compress(b" " * 1_000_000)
        assert len(body) > 900
        body = gzip.compress(b" " * 100_000)
        assert len(body) < 1000
        answer = await server.post(COMPLETIONS_URL, body, headers={"Content-Encoding": "gzip"})
        assert answer.status == 413


async def test_body_that_cannot_be_decompressed(server: Server) -> None:
    answer = await server.post(COMPLETIONS_URL, b"not gzip at all", headers={"Content-Encoding": "gzip"})
    assert answer.status == 400
    assert answer.error["code"] == "invalid_body"


@pytest.mark.parametrize("stream", [False, True])
async def test_too_much_waits(stream: bool) -> None:
    async with serving(ScriptedEngine(max_waiting=1)) as server:
        asking = asyncio.create_task(server.complete())
        request = await server.engine.next_request()
        refused = await server.complete(stream=stream)
        assert refused.status == 429
        assert refused.headers["Retry-After"] == "3"
        assert refused.error["type"] == "rate_limit_error"
        request.finish()
        assert (await asking).status == 200


async def test_a_refused_prompt_takes_the_others_of_its_list_along() -> None:
    async with serving(ScriptedEngine(max_waiting=2)) as server:
        assert (await server.complete(["a", "b", "c"])).status == 429
        assert not server.engine.running
        assert server.engine.num_requests == 2


@pytest.mark.parametrize("state", [EngineState.LOADING, EngineState.DRAINING, EngineState.CLOSED])
async def test_not_ready(server: Server, state: EngineState) -> None:
    server.engine.state = state
    answer = await server.chat(stream=True)
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert state.value in answer.error["message"]


async def test_failed_engine(server: Server) -> None:
    server.engine.state = EngineState.FAILED
    server.engine.failure = EngineFailed("the device is lost")
    answer = await server.complete()
    assert answer.status == 503
    assert "Retry-After" not in answer.headers
    assert answer.error["code"] == "engine_failed"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (EngineFailed("the device is lost"), "engine_failed", 503),
        (ConsumerTooSlow("nobody read"), "consumer_too_slow", 408),
    ],
)
async def test_failure_on_the_way(held: Server, error: Exception, code: str, status: int) -> None:
    streamed = asyncio.create_task(held.chat(stream=True))
    request = await held.engine.next_request()
    request.emit("half an ")
    request.fail(error)
    answer = await streamed
    assert answer.status == 200
    *_, text, failure = answer.events
    assert text["choices"][0]["delta"]["content"] == "half an "
    assert failure["error"]["code"] == code

    plain = asyncio.create_task(held.chat())
    (await held.engine.next_request()).fail(error)
    assert (await plain).status == status


async def test_one_of_several_prompts_fails_on_the_way(held: Server) -> None:
    streamed = asyncio.create_task(held.complete(["a", "b"], stream=True))
    first, second = [await held.engine.next_request() for _ in range(2)]
    first.emit("text")
    second.fail(ConsumerTooSlow("nobody read"))
    assert (await streamed).events[-1]["error"]["code"] == "consumer_too_slow"
    assert first.reason is FinishReason.ABORT

    plain = asyncio.create_task(held.complete(["a", "b"]))
    first, second = [await held.engine.next_request() for _ in range(2)]
    second.fail(ConsumerTooSlow("nobody read"))
    assert (await plain).status == 408
    assert first.reason is FinishReason.ABORT


async def test_what_the_server_ended_is_no_whole_answer(held: Server) -> None:
    streamed = asyncio.create_task(held.complete(stream=True))
    request = await held.engine.next_request()
    request.emit("half")
    request.finish(FinishReason.ABORT)
    text, failure = (await streamed).events
    assert text["choices"][0]["text"] == "half"
    assert "shutting down" in failure["error"]["message"]

    plain = asyncio.create_task(held.complete())
    (await held.engine.next_request()).finish(FinishReason.ABORT)
    assert (await plain).status == 503


async def test_a_bug_is_logged_and_not_shown(
    held: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(held.engine, "stream", broken)
    answer = await held.post(COMPLETIONS_URL, {"prompt": "a"}, headers={"X-Request-Id": "abc"})
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "abc" in answer.error["message"]
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "abc" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


# Clients that leave


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("polite", [False, True])
async def test_leaving_ends_the_request(held: Server, stream: bool, polite: bool) -> None:
    """B15."""
    for _ in range(20):
        async with RawClient.connect(held.port) as client:
            client.post(COMPLETIONS_URL, {"prompt": "a", "stream": stream, "max_tokens": 2000})
            request = await held.engine.next_request()
            if polite:
                await client.aclose()
            else:
                client.abort()
            await request.ended.wait()
            assert request.reason is FinishReason.ABORT
    assert not held.engine.running


async def test_leaving_in_the_middle_of_a_stream(held: Server) -> None:
    async with RawClient.connect(held.port) as client:
        client.post(CHAT_URL, {"messages": HELLO, "stream": True})
        request = await held.engine.next_request()
        request.emit("text")
        await client.read_until(b'"text"')
        client.abort()
        await request.ended.wait()
    assert request.reason is FinishReason.ABORT


async def test_leaving_before_admission(held: Server) -> None:
    held.engine.may_admit.clear()
    async with RawClient.connect(held.port) as client:
        client.post(CHAT_URL, {"messages": HELLO})
        await held.engine.admitting.wait()
        client.abort()
        await held.engine.given_up.wait()
    held.engine.may_admit.set()
    assert held.engine.num_requests == 0


async def test_leaving_with_several_prompts(held: Server) -> None:
    for stream in (False, True):
        async with RawClient.connect(held.port) as client:
            client.post(COMPLETIONS_URL, {"prompt": ["a", "b", "c"], "stream": stream})
            requests = [await held.engine.next_request() for _ in range(3)]
            client.abort()
            for request in requests:
                await request.ended.wait()
                assert request.reason is FinishReason.ABORT


async def test_all_leave_at_once(held: Server) -> None:
    """B69: gauges and counters say so at the next scrape."""
    clients: list[Any] = []
    for _ in range(50):
        context = RawClient.connect(held.port)
        client = await context.__aenter__()
        client.post(COMPLETIONS_URL, {"prompt": "a", "stream": True})
        clients.append((context, client))
    requests = [await held.engine.next_request() for _ in range(50)]
    assert len(held.engine.running) == 50
    for _, client in clients:
        client.abort()
    for request in requests:
        await request.ended.wait()
    metrics = (await held.get("/metrics")).body.decode()
    assert 'aioinfer:num_requests_running{model_name="scripted"} 0.0' in metrics
    assert 'aioinfer:http_requests_total{method="POST",route="/v1/completions",status="499"} 50.0' in metrics
    for context, _ in clients:
        await context.__aexit__(None, None, None)


async def test_a_slow_reader_gets_merged_deltas_and_the_whole_text(held: Server) -> None:
    texts = [f"<{number:06}>" + "x" * 100 for number in range(20_000)]
    async with RawClient.connect(held.port, buffer_bytes=4096) as client:
        client.post(COMPLETIONS_URL, {"prompt": "a", "stream": True, "max_tokens": 50_000})
        request = await held.engine.next_request()
        for text in texts:
            request.emit(text)
            await asyncio.sleep(0)  # the server sends what it can
        request.finish()
        body = bytearray()
        while not body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            body += await client.reader.read(2**16)
    num_events = body.count(b'"text":"<')
    assert 1 < num_events < len(texts) / 4
    assert all(text.encode() in body for text in texts[:: len(texts) // 50])
    assert body.count(b"<") == len(texts)


async def test_who_reads_nothing_is_dropped() -> None:
    async with (
        serving(ScriptedEngine(), write_timeout_s=0.05) as server,
        RawClient.connect(server.port, buffer_bytes=4096) as client,
    ):
        client.post(COMPLETIONS_URL, {"prompt": "a", "stream": True})
        request = await server.engine.next_request()
        while not request.ended.is_set():
            request.emit("x" * 10_000)
            await asyncio.sleep(0)
        assert request.reason is FinishReason.ABORT
