"""Where a request's output waits for its reader: one slot that merges.

A reader that is behind finds fewer, larger deltas; memory is bounded by the request's own length, and there
is at most one wake-up per delivery.  Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aioinfer.types import Delta

if TYPE_CHECKING:
    from aioinfer.types import FinishReason, Usage


class Mailbox:
    """Written by the step loop, read by one consumer at a time."""

    __slots__ = (
        "_error",
        "_filled_s",
        "_finish_reason",
        "_reader",
        "_stop_reason",
        "_texts",
        "_token_ids",
        "_usage",
        "closed",
    )

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._filled_s: float | None = None
        self._finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        self._usage: Usage | None = None
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self.closed = False
        """Whether the last delta or error has been put in."""

    def put(self, text: str, token_id: int, now_s: float) -> None:
        """Add a token and the text that it completed."""
        self._token_ids.append(token_id)
        if text:
            self._texts.append(text)
        if self._filled_s is None:
            self._filled_s = now_s
        self._wake()

    def finish(self, text: str, reason: FinishReason, stop_reason: str | int | None, usage: Usage) -> None:
        """Put in the last delta."""
        if text:
            self._texts.append(text)
        self._finish_reason, self._stop_reason, self._usage = reason, stop_reason, usage
        self.closed = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """End with an error, raised at the reader after what is still unread."""
        self._error = error
        self.closed = True
        self._wake()

    def unread_since(self) -> float | None:
        """When the oldest unread token was put in; None if all is read."""
        return self._filled_s

    def check_free(self) -> None:
        """Refuse a second reader at a time: it would take away what wakes the first.

        Raises:
            RuntimeError: a task is waiting in `take`.
        """
        if self._reader is not None and not self._reader.done():
            raise RuntimeError("another task is reading the stream; a stream has one reader at a time")

    async def take(self) -> Delta | None:
        """Everything unread as one delta; waits until there is something; None after the end.

        Raises:
            AioinferError: the request failed.
            RuntimeError: another task is waiting for it.
        """
        while not (self._token_ids or self.closed):
            self.check_free()
            reader = self._reader = asyncio.get_running_loop().create_future()
            try:
                await reader
            finally:
                if self._reader is reader:
                    self._reader = None
        if self._token_ids or self._finish_reason is not None:
            return self._empty()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return None

    def _empty(self) -> Delta:
        delta = Delta(
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            usage=self._usage,
        )
        self._texts.clear()
        self._token_ids.clear()
        self._filled_s = self._finish_reason = None
        return delta

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
