"""Backpressure: when a client's socket takes more, and what happens to a client that takes nothing.

A small send buffer is what makes deltas merge: data that waits in a mailbox can still be joined, data that
waits in a socket cannot.  So the transport's buffer and the kernel's unsent data are both bounded here, and
who writes waits until the buffer is low again.  Does not write; the response objects do that.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from aiohttp import ClientConnectionResetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web
    from aiohttp.abc import AbstractStreamWriter

logger = logging.getLogger(__name__)

# About a hundred events: enough to keep a fast client busy, too little to make a slow one late.
HIGH_WATER_BYTES = 32 * 1024
LOW_WATER_BYTES = 8 * 1024
UNSENT_BYTES = 16 * 1024


class Outlet:
    """The writing side of one connection, shared by the tasks that write to it.

    Args:
        request: whose connection.
        writer: the prepared response's.
        timeout_s: how long the client may take nothing.
        on_stall: called when it took nothing for so long, and must then end the connection; by default
            that is all that happens.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        writer: AbstractStreamWriter,
        *,
        timeout_s: float,
        on_stall: Callable[[], None] | None = None,
    ) -> None:
        self._protocol = request.protocol
        self._writer = writer
        self._timeout_s = timeout_s
        self._on_stall = on_stall or self.abort
        self._draining: asyncio.Task[None] | None = None
        self._bound_buffers()

    @property
    def blocked(self) -> bool:
        """Whether the client is behind."""
        return self._protocol.writing_paused

    async def ready(self) -> None:
        """Wait until the client takes more.

        Raises:
            ConnectionError: the connection is lost.
        """
        while self._protocol.writing_paused:
            if self._protocol.transport is None:
                raise ClientConnectionResetError("the client has left")
            if self._draining is None:
                self._draining = asyncio.create_task(self._drain())
            # All writers wait for one future of aiohttp's, which the cancelling of one would cancel for all.
            await asyncio.shield(self._draining)

    def abort(self) -> None:
        """End the connection now, whatever is unsent."""
        if self._protocol.transport is not None:
            self._protocol.transport.abort()

    def close(self) -> None:
        """Nobody writes any more."""
        if self._draining is not None:
            self._draining.cancel()

    async def _drain(self) -> None:
        self._watch()
        try:
            await self._writer.drain()
        except ConnectionError:
            return  # `ready` tells the writers
        finally:
            self._check.cancel()
            self._draining = None

    def _watch(self) -> None:
        """Look again in a while: a client that takes a little is slow, one that takes nothing is gone."""
        loop = asyncio.get_running_loop()
        self._check = loop.call_later(self._timeout_s, self._look, self._num_unsent_bytes())

    def _look(self, num_unsent_bytes: int) -> None:
        if self._num_unsent_bytes() < num_unsent_bytes:
            self._watch()
        else:
            logger.info("a client took nothing for %s s and loses its connection", self._timeout_s)
            self._on_stall()

    def _num_unsent_bytes(self) -> int:
        transport = self._protocol.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def _bound_buffers(self) -> None:
        transport = self._protocol.transport
        if transport is None:
            raise ClientConnectionResetError("the client has left")
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        connection = transport.get_extra_info("socket")
        is_tcp = connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6)
        if is_tcp and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
