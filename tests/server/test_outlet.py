"""A client that takes a little is slow; one that takes nothing is dropped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aioinfer.server.outlet import Outlet


class Connection:
    """A paused connection whose unsent bytes shrink as `sizes` say, one value per look."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = list(sizes)
        self.writing_paused = True
        self.transport: Any = self
        self.drained = asyncio.Event()
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.sizes.pop(0)

    def set_write_buffer_limits(self, *, high: int, low: int) -> None:
        assert 0 < low < high

    def get_extra_info(self, _: str) -> None:
        return None

    def abort(self) -> None:
        self.aborted.set()

    async def drain(self) -> None:
        await self.drained.wait()

    def lose(self) -> None:
        self.transport = None
        self.drained.set()

    def outlet(self, *, timeout_s: float, **options: Any) -> Outlet:
        request: Any = SimpleNamespace(protocol=self)
        writer: Any = self
        return Outlet(request, writer, timeout_s=timeout_s, **options)


async def test_progress_is_patience() -> None:
    connection = Connection(100, 90, 90, 80, 80, 80)
    outlet = connection.outlet(timeout_s=0.001)
    waiting = asyncio.create_task(outlet.ready())
    await connection.aborted.wait()
    assert not connection.sizes  # it looked until there was no progress
    connection.lose()
    with pytest.raises(ConnectionError):
        await waiting


async def test_waiting_ends_when_the_client_takes_more() -> None:
    connection = Connection(100)
    outlet = connection.outlet(timeout_s=3600)
    waiting = [asyncio.create_task(outlet.ready()) for _ in range(3)]
    await asyncio.sleep(0)
    connection.writing_paused = False
    connection.drained.set()
    await asyncio.gather(*waiting)
    outlet.close()


async def test_cancelling_one_waiter_leaves_the_others() -> None:
    connection = Connection(100)
    outlet = connection.outlet(timeout_s=3600)
    first, second = [asyncio.create_task(outlet.ready()) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    connection.writing_paused = False
    connection.drained.set()
    await second
    assert first.cancelled()


async def test_another_reaction_to_a_stall() -> None:
    connection = Connection(100, 100)
    stalled = asyncio.Event()
    outlet = connection.outlet(timeout_s=0.001, on_stall=stalled.set)
    waiting = asyncio.create_task(outlet.ready())
    await stalled.wait()
    assert not connection.aborted.is_set()
    outlet.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_lost_connection_cannot_be_bounded() -> None:
    connection = Connection()
    connection.transport = None
    with pytest.raises(ConnectionError):
        connection.outlet(timeout_s=1)
