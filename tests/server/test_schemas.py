"""Whatever the body, the answer is a result or a named refusal, and nobody else is disturbed."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioinfer.errors import InvalidRequest
from aioinfer.server import parameters
from aioinfer.server.schemas import (
    MAX_MESSAGES,
    MAX_PARTS,
    ChatRequest,
    CompletionRequest,
    parse_json_object,
)
from tests.server.clients import CHAT_URL, COMPLETIONS_URL, HELLO, RawClient, Server, serving
from tests.server.scripted_engine import ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAMES = sorted(
    {*ChatRequest.model_fields, *CompletionRequest.model_fields, *parameters.CHAT, *parameters.COMPLETION}
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, 1, -1, 0.5, "", "auto", "none", "user"])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
MESSAGE = st.dictionaries(
    st.sampled_from(["role", "content", "name", "tool_calls", "type"]), JSON, max_size=4
)
FIELDS = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), JSON, max_size=4)
GOOD: dict[str, dict[str, Any]] = {
    CHAT_URL: {"messages": HELLO, "max_tokens": 2},
    COMPLETIONS_URL: {"prompt": "Hi", "max_tokens": 2},
}
ACCEPTED = {200, 400, 404}

relaxed = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Bystander:
    """A stream that runs all the while."""

    def __init__(self, server: Server, client: RawClient) -> None:
        self._server = server
        self._client = client
        self._count = 0

    async def start(self) -> None:
        self._client.post(COMPLETIONS_URL, {"prompt": "a", "stream": True, "max_tokens": 50_000})
        self._request = await self._server.engine.next_request()
        self._server.engine.script = ("a", "b", "c")  # for all that come after

    async def assert_undisturbed(self) -> None:
        self._count += 1
        self._request.emit(f"<{self._count}>")
        assert f'"text":"<{self._count}>"'.encode() in await self._client.read_until(b"\n\n")


@asynccontextmanager
async def with_bystander() -> AsyncIterator[tuple[Server, Bystander]]:
    async with serving(ScriptedEngine()) as server, RawClient.connect(server.port) as client:
        bystander = Bystander(server, client)
        await bystander.start()
        yield server, bystander


@pytest.fixture
async def busy() -> AsyncIterator[tuple[Server, Bystander]]:
    async with with_bystander() as pair:
        yield pair


@relaxed
@given(url=st.sampled_from(sorted(GOOD)), fields=FIELDS)
async def test_any_field_of_any_value(busy: tuple[Server, Bystander], url: str, fields: Any) -> None:
    server, bystander = busy
    answer = await server.post(url, GOOD[url] | fields)
    assert answer.status in ACCEPTED
    if answer.status != 200:
        assert answer.error["message"]
    await bystander.assert_undisturbed()


@relaxed
@given(messages=st.lists(MESSAGE, max_size=3) | JSON)
async def test_any_messages(busy: tuple[Server, Bystander], messages: Any) -> None:
    server, bystander = busy
    assert (await server.chat(messages)).status in ACCEPTED
    await bystander.assert_undisturbed()


@relaxed
@given(prompt=st.lists(JSON, max_size=4) | st.lists(st.lists(JSON, max_size=3), max_size=3) | JSON)
async def test_any_prompt(busy: tuple[Server, Bystander], prompt: Any) -> None:
    server, bystander = busy
    assert (await server.complete(prompt)).status in ACCEPTED
    await bystander.assert_undisturbed()


@relaxed
@given(body=st.binary(max_size=64) | JSON.map(orjson.dumps) | st.text(max_size=64).map(str.encode))
async def test_any_body(busy: tuple[Server, Bystander], body: bytes) -> None:
    server, bystander = busy
    assert (await server.post(CHAT_URL, body)).status in ACCEPTED
    await bystander.assert_undisturbed()


@pytest.mark.parametrize("schema", [ChatRequest, CompletionRequest])
def test_no_parameter_is_both_supported_and_not(schema: type[ChatRequest] | type[CompletionRequest]) -> None:
    assert not set(schema.model_fields) & set(schema.unsupported)


@pytest.mark.parametrize("schema", [ChatRequest, CompletionRequest])
def test_every_unsupported_parameter_is_accepted_when_it_asks_for_nothing_and_else_named(
    schema: type[ChatRequest] | type[CompletionRequest],
) -> None:
    good = {"messages": HELLO} if schema is ChatRequest else {"prompt": "a"}
    for name, noops in schema.unsupported.items():
        for value in noops:
            schema.parse(good | {name: value})
        with pytest.raises(InvalidRequest) as refusal:
            schema.parse(good | {name: "something else"})
        assert (refusal.value.param, refusal.value.code) == (name, "unsupported_parameter")
        assert name in str(refusal.value)


def test_a_long_unknown_name_is_shortened() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ChatRequest.parse({"messages": HELLO, "x" * 100_000: 1})
    assert len(str(refusal.value)) < 2000


def test_large_wrong_values_are_shortened() -> None:
    for field, value in (
        ("user", ["x" * 100] * 10_000),
        ("stop", ["x", *range(10_000)]),
        ("seed", "9" * 10_000),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            ChatRequest.parse({"messages": HELLO, field: value})
        assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("schema", "fields", "param"),
    [
        (ChatRequest, {"messages": HELLO * (MAX_MESSAGES + 1)}, "messages"),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * (MAX_PARTS + 1)}]},
            "messages[0].content",
        ),
        (CompletionRequest, {"prompt": [1] * 1000 + [1.5]}, "prompt[1000]"),
        (CompletionRequest, {"prompt": ["a", 1, None]}, "prompt[1]"),
        (CompletionRequest, {"prompt": [None, 1]}, "prompt[0]"),
        (CompletionRequest, {"prompt": [[1], [1, True]]}, "prompt[1][1]"),
    ],
)
def test_the_place_is_named_and_counts_are_bounded(
    schema: type[ChatRequest] | type[CompletionRequest], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        schema.parse(fields)
    assert refusal.value.param == param


def test_json_with_a_byte_order_mark_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        parse_json_object(b"\xef\xbb\xbf{}")
