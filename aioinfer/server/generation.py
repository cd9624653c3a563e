"""``POST /v1/completions`` and ``POST /v1/chat/completions``, plain and streamed.

A handler runs in the task of its connection, and aiohttp cancels it when the client leaves; leaving the
blocks of its streams then ends the requests at once.  Headers of a streamed answer are sent when all of its
requests are admitted, so that what is wrong before has its HTTP status.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from aioinfer.errors import InvalidRequest
from aioinfer.server.errors import failure_of
from aioinfer.server.replies import DONE, error_event, public_reason
from aioinfer.server.schemas import ChatRequest, CompletionRequest, parse_json_object
from aioinfer.server.service import SERVICE
from aioinfer.server.sse import EventStream

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from aioinfer import Completion, RequestStream, Usage
    from aioinfer.server.replies import ChoiceChunks, Reply
    from aioinfer.server.service import Service

_Result = TypeVar("_Result")


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """OpenAI's chat."""
    return await _answer(request, ChatRequest)


async def completions(request: web.Request) -> web.StreamResponse:
    """OpenAI's plain completions."""
    return await _answer(request, CompletionRequest)


async def _answer(
    request: web.Request, schema: type[ChatRequest] | type[CompletionRequest]
) -> web.StreamResponse:
    service = request.app[SERVICE]
    service.require_ready()
    body = schema.parse(parse_json_object(await read_body(request, service.config.max_body_bytes)))
    service.check_model(body.model)
    reply = service.reply(body)
    streams = service.streams(body, reply.id)
    async with AsyncExitStack() as stack:
        for index, stream in enumerate(streams):
            try:
                await stack.enter_async_context(stream)
            except InvalidRequest as error:
                raise body.in_client_terms(error, index) from None
        if body.stream:
            return await _stream(service, request, reply, streams)
        finished = await _all(_collect(stream) for stream in streams)
    return web.Response(body=reply.plain(finished), content_type="application/json")


async def read_body(request: web.Request, max_bytes: int) -> bytes:
    """The request's body.

    The bound is ours and not the application's `client_max_size`, which a program that mounts it sets.

    Raises:
        HTTPRequestEntityTooLarge: it is larger than `max_bytes`, decompressed.
        InvalidRequest: its transfer or content encoding is broken.
    """
    if (request.content_length or 0) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async for piece in request.content.iter_any():
            body += piece
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
    except web.RequestPayloadError as error:
        raise InvalidRequest(f"the body cannot be read: {error}", code="invalid_body") from None
    return bytes(body)


def _too_large(max_bytes: int) -> web.HTTPRequestEntityTooLarge:
    return web.HTTPRequestEntityTooLarge(
        max_bytes, text=f"the body is larger than {max_bytes} bytes, the most that is accepted"
    )


async def _stream(
    service: Service, request: web.Request, reply: Reply, streams: list[RequestStream]
) -> web.StreamResponse:
    config = service.config
    events = EventStream(request, keepalive_s=config.sse_keepalive_s, timeout_s=config.write_timeout_s)
    # A client that left needs no answer; leaving the blocks ends its requests.
    with suppress(ConnectionError):
        async with events:
            await events.finish(await _generate(events, reply, streams))
    return events.response


async def _generate(events: EventStream, reply: Reply, streams: list[RequestStream]) -> bytes:
    """Send what the streams generate; returns the last events, which remain to be sent.

    Raises:
        ConnectionError: the client has left.
    """
    try:
        usages = await _all(
            _pump(stream, reply.choice_chunks(index), events) for index, stream in enumerate(streams)
        )
    except ConnectionError:
        raise
    except Exception as error:
        return error_event(failure_of(error).error)
    return (reply.usage_event(usages) if reply.include_usage else b"") + DONE


async def _pump(stream: RequestStream, chunks: ChoiceChunks, events: EventStream) -> Usage:
    """Send one choice.

    Raises:
        EngineClosed: the server ended it.
    """
    reason = None
    async for delta in stream:
        reason = delta.finish_reason
        if data := chunks.encode(delta):
            await events.send(data)
    if reason is not None:
        public_reason(reason)
    return stream.usage


async def _collect(stream: RequestStream) -> Completion:
    return await stream


async def _all(coroutines: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """The results of all; the first failure cancels the others and is raised as it is."""
    first, *others = coroutines
    if not others:
        return [await first]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in (first, *others)]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
