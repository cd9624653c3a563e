"""What is sent back over HTTP: OpenAI's response objects and stream chunks, as bytes.

The chunks are the hot path (one per request and step), so nothing is built for them that is not new: the
constant parts are bytes from the start, and only the text is encoded.

Finish reasons are OpenAI's `stop` and `length`.  A request that the server itself ended (draining) is an
error and not a `finish_reason`: clients know no word for it, and must not take half an answer for a whole
one.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from aioinfer.errors import EngineClosed
from aioinfer.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioinfer.types import Completion, Delta, Usage

_PUBLIC_REASONS = (FinishReason.STOP, FinishReason.LENGTH)

DONE = b"data: [DONE]\n\n"


def usage_object(usages: Iterable[Usage]) -> dict[str, Any]:
    """OpenAI's usage object for one or several generations."""
    prompt = completion = cached = 0
    for usage in usages:
        prompt += usage.prompt_tokens
        completion += usage.completion_tokens
        cached += usage.cached_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error_event(error: dict[str, Any]) -> bytes:
    """The last event of a stream that failed; without [DONE], so nobody takes it for whole."""
    return b"data: " + orjson.dumps({"error": error}) + b"\n\n"


def public_reason(reason: FinishReason) -> str:
    """OpenAI's word for why a generation ended.

    Raises:
        EngineClosed: the server ended it.
    """
    if reason in _PUBLIC_REASONS:
        return reason.value
    raise EngineClosed("the server is shutting down and ended this request before its end")


class ChoiceChunks:
    """The stream events of one choice.

    Args:
        opening: event that goes before the first text.
        text: what stands before and after a JSON string in an event with text.
        finish: what stands before and after the finish reason in the last event.
    """

    __slots__ = ("_finish", "_opening", "_text")

    def __init__(self, opening: bytes, text: tuple[bytes, bytes], finish: tuple[bytes, bytes]) -> None:
        self._opening = opening
        self._text = text
        self._finish = finish

    def encode(self, delta: Delta) -> bytes:
        """The events for a delta; empty if it has nothing to tell.

        A choice that the server ended gets no last event; `public_reason` has its error.
        """
        events = b""
        if delta.text:
            before, after = self._text
            events = before + orjson.dumps(delta.text) + after
        if delta.finish_reason in _PUBLIC_REASONS:
            before, after = self._finish
            events += before + delta.finish_reason.value.encode() + after
        if events and self._opening:
            events, self._opening = self._opening + events, b""
        return events


class Reply(ABC):
    """The answer to one API request; makes its bytes, sends nothing.

    Args:
        model: name that the client knows.
        fingerprint: names the configuration that answers.
        include_usage: the stream ends with a chunk that has the usage.
    """

    id_prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, *, model: str, fingerprint: str, include_usage: bool) -> None:
        self.id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self.include_usage = include_usage
        self._common = {
            "id": self.id,
            "object": self.object,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        # Without its closing brace: the rest of the chunk follows.
        self._head = b"data: " + orjson.dumps(self._common | {"object": self.chunk_object})[:-1]

    def plain(self, completions: Sequence[Completion]) -> bytes:
        """The body of the plain answer.

        Raises:
            EngineClosed: the server ended a generation.
        """
        return orjson.dumps(
            self._common
            | {
                "choices": [self._choice(index, completion) for index, completion in enumerate(completions)],
                "usage": usage_object(completion.usage for completion in completions),
            }
        )

    def usage_event(self, usages: Iterable[Usage]) -> bytes:
        """The chunk after the last, which has no choices."""
        return self._head + b',"choices":[],"usage":' + orjson.dumps(usage_object(usages)) + b"}\n\n"

    @abstractmethod
    def choice_chunks(self, index: int) -> ChoiceChunks:
        """The stream of one choice."""

    @abstractmethod
    def _choice(self, index: int, completion: Completion) -> dict[str, Any]: ...

    def _around(self, index: int, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """A chunk with one choice, around the one value in it that changes."""
        end = b',"usage":null}\n\n' if self.include_usage else b"}\n\n"
        return self._head + b',"choices":[{"index":%d,' % index + before, after + b"}]" + end


class ChatReply(Reply):
    """The answer to a chat."""

    id_prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def choice_chunks(self, index: int) -> ChoiceChunks:
        role = (
            b'"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null'
        )
        return ChoiceChunks(
            opening=b"".join(self._around(index, role, b"")),
            text=self._around(index, b'"delta":{"content":', b'},"logprobs":null,"finish_reason":null'),
            finish=self._around(index, b'"delta":{},"logprobs":null,"finish_reason":"', b'"'),
        )

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": None,
            "finish_reason": public_reason(completion.finish_reason),
        }


class CompletionReply(Reply):
    """The answer to a plain completion."""

    id_prefix = "cmpl"
    object = chunk_object = "text_completion"

    def choice_chunks(self, index: int) -> ChoiceChunks:
        return ChoiceChunks(
            opening=b"",
            text=self._around(index, b'"text":', b',"logprobs":null,"finish_reason":null'),
            finish=self._around(index, b'"text":"","logprobs":null,"finish_reason":"', b'"'),
        )

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        return {
            "index": index,
            "text": completion.text,
            "logprobs": None,
            "finish_reason": public_reason(completion.finish_reason),
        }
