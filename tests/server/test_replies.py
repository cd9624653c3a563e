"""The prebuilt chunks are exactly what encoding the whole object would give."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioinfer import Delta, FinishReason, Usage
from aioinfer.errors import EngineClosed
from aioinfer.server.replies import ChatReply, CompletionReply, Reply, public_reason, usage_object

TEXT = st.text(st.characters(codec="utf-8"))


def reply_of(kind: type[Reply], *, include_usage: bool = False) -> Reply:
    return kind(model='the "model" ü', fingerprint="fp_x", include_usage=include_usage)


@pytest.mark.parametrize("kind", [ChatReply, CompletionReply])
@pytest.mark.parametrize("include_usage", [False, True])
@given(text=TEXT, index=st.integers(0, 1000))
def test_any_text_at_any_index(kind: type[Reply], include_usage: bool, text: str, index: int) -> None:
    reply = reply_of(kind, include_usage=include_usage)
    chunks = reply.choice_chunks(index)
    data = chunks.encode(Delta(text=text)) + chunks.encode(Delta(text="", finish_reason=FinishReason.LENGTH))
    events = [orjson.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n") if event]
    assert all(event.get("usage", "absent") == (None if include_usage else "absent") for event in events)
    assert all((event["model"], event["id"]) == ('the "model" ü', reply.id) for event in events)
    choices = [choice for event in events for choice in event["choices"]]
    assert all(choice["index"] == index for choice in choices)
    field = "delta" if kind is ChatReply else "text"
    contents = [choice[field] for choice in choices]
    if kind is ChatReply:
        contents = [content.get("content", "") for content in contents]
    assert "".join(contents) == text
    assert [choice["finish_reason"] for choice in choices][-1] == "length"


@pytest.mark.parametrize("kind", [ChatReply, CompletionReply])
def test_nothing_to_tell_is_no_event(kind: type[Reply]) -> None:
    chunks = reply_of(kind).choice_chunks(0)
    assert chunks.encode(Delta(text="", token_ids=(1,))) == b""


def test_usage_is_the_sum() -> None:
    usages = [
        Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=1),
        Usage(prompt_tokens=3, completion_tokens=4),
    ]
    assert usage_object(usages) == {
        "prompt_tokens": 4,
        "completion_tokens": 6,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_no_whole_answer(reason: FinishReason) -> None:
    with pytest.raises(EngineClosed):
        public_reason(reason)
