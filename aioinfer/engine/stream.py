"""What a caller holds of a request: iterate it, await it, or leave it.

Loop thread only.  Cleaning up never awaits, so cancellation at any point ends the request at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from aioinfer.types import Completion, Usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import TracebackType

    from aioinfer.engine.request import Request
    from aioinfer.types import Delta


class RequestStream:
    """One generation.  Made by `Engine.stream` and `Engine.stream_chat`; it owns nothing until it is started.

    Either enter it, and iterate inside the block::

        async with engine.stream("Hello", max_tokens=64) as stream:
            async for delta in stream:
                print(delta.text, end="")

    or await it for the whole result: ``completion = await engine.stream("Hello")``.

    Leaving the block, cancelling the task, `cancel` and a timeout all end the request at once.

    Attributes:
        request_id: the caller's, or a made one.
    """

    def __init__(
        self,
        request_id: str,
        start: Callable[[], Awaitable[Request]],
        abort: Callable[[Request], None],
    ) -> None:
        self.request_id = request_id
        self._start = start
        self._abort = abort
        self._request: Request | None = None
        self._starting = False
        self._cancelled = False

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        if self._request is None:
            return Usage(prompt_tokens=0, completion_tokens=0)
        return self._request.usage

    async def __aenter__(self) -> Self:
        """Do the prompt's text work and queue the request.

        Raises:
            InvalidRequest: the request is wrong.
            Overloaded: too much is waiting.
            EngineError: the engine cannot serve.
        """
        await self._ensure_started()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def __aiter__(self) -> Self:
        if self._request is None:
            raise RuntimeError("enter the stream first: async with engine.stream(...) as stream")
        return self

    async def __anext__(self) -> Delta:
        """Everything since the last delta.

        Raises:
            RequestFailed: the request could not go on.
            EngineFailed: the engine could not.
        """
        if self._request is None:
            raise RuntimeError("enter the stream first: async with engine.stream(...) as stream")
        delta = await self._request.mailbox.take()
        if delta is None:
            raise StopAsyncIteration
        return delta

    def __await__(self) -> Generator[object, None, Completion]:
        return self._collect().__await__()

    def cancel(self) -> None:
        """End the request now.  Its reader gets what there is, with finish reason `abort`; idempotent.

        A stream that is only being started ends as soon as it has been.
        """
        self._cancelled = True
        if self._request is not None:
            self._abort(self._request)

    async def _collect(self) -> Completion:
        request = await self._ensure_started()
        request.mailbox.check_free()  # before what follows ends the request of another reader
        try:
            while await request.mailbox.take() is not None:
                pass
        finally:
            self.cancel()
        return request.completion()

    async def _ensure_started(self) -> Request:
        if self._request is None:
            if self._starting:
                raise RuntimeError("the stream is being started by another task")
            self._starting = True
            try:
                self._request = await self._start()
            finally:
                self._starting = False
            if self._cancelled:
                self._abort(self._request)
        return self._request
