"""Server-sent events: one response that stays open while its request generates.

Owns the response, its keep-alive and its backpressure; knows nothing of what the events say.  Each call of
`send` is one write to the socket.  Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from aiohttp import ClientConnectionResetError, web
from aiohttp.http import StreamWriter

from aioinfer.server.outlet import Outlet

if TYPE_CHECKING:
    from types import TracebackType

COMMENT = b": keep-alive\n\n"

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # Or nginx collects the events and sends them together.
    "X-Accel-Buffering": "no",
}


class EventStream:
    """An open stream of events; entering it sends the headers.

    Args:
        request: what it answers.
        keepalive_s: send a comment after so much silence, so that a peer that died or a proxy that lost
            patience is noticed; 0 sends none.
        timeout_s: a client that takes nothing for so long loses its connection.
    """

    def __init__(self, request: web.BaseRequest, *, keepalive_s: float, timeout_s: float) -> None:
        self._request = request
        self._keepalive_s = keepalive_s
        self._timeout_s = timeout_s
        self._commenting: asyncio.Task[None] | None = None
        self.response = web.StreamResponse(headers=_HEADERS)

    async def __aenter__(self) -> Self:
        writer = await self.response.prepare(self._request)
        assert isinstance(writer, StreamWriter)
        self._writer = writer
        self._outlet = Outlet(self._request, writer, timeout_s=self._timeout_s)
        self._last_s = asyncio.get_running_loop().time()
        if self._keepalive_s:
            self._commenting = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._commenting is not None:
            self._commenting.cancel()
        self._outlet.close()

    async def send(self, events: bytes) -> None:
        """Send events, and wait until the client takes more.

        Raises:
            ConnectionError: the client has left, or took nothing for too long.
        """
        if self._outlet.blocked:
            await self._outlet.ready()
        await self._write(events)
        if self._outlet.blocked:
            await self._outlet.ready()

    async def finish(self, events: bytes) -> None:
        """Send the last events.

        Raises:
            ConnectionError: as for `send`.
        """
        await self._outlet.ready()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self.response.write_eof(events)
        except TimeoutError:
            self._outlet.abort()
            raise ClientConnectionResetError("the client took nothing for too long") from None

    async def _write(self, events: bytes) -> None:
        self._last_s = self._writer.loop.time()
        # Waiting is the outlet's: aiohttp's own has no bound.
        await self._writer.write(events, drain=False)

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                last_s = self._last_s
                await asyncio.sleep(last_s + self._keepalive_s - loop.time())
                if self._last_s == last_s:
                    await self._outlet.ready()
                    await self._write(COMMENT)
        except ConnectionError:
            return  # whoever writes next learns of it
