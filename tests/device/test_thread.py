"""The submission thread: order, results, failures, and its end."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from aioinfer.device.cpu import CpuDevice
from aioinfer.device.thread import DeviceThread
from aioinfer.errors import BackendUnavailable, EngineClosed

if TYPE_CHECKING:
    from collections.abc import Callable


class DeferredDevice(CpuDevice):
    """Events complete when the test says so, in whatever thread it says it."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Callable[[], None]] = []
        self.closed_by: str | None = None

    def when_done(self, event: None, callback: Callable[[], None]) -> None:
        self.pending.append(callback)

    def close(self) -> None:
        self.closed_by = threading.current_thread().name


async def opened(device: CpuDevice | None = None) -> DeviceThread:
    thread = DeviceThread(lambda: device or CpuDevice(), asyncio.get_running_loop())
    await thread.open()
    return thread


async def test_jobs_run_in_order_on_one_thread_of_their_own() -> None:
    thread = await opened()
    order: list[int] = []

    def job(number: int) -> tuple[int, str]:
        order.append(number)
        return number, threading.current_thread().name

    results = await asyncio.gather(*(thread.submit(lambda n=n: job(n)) for n in range(50)))  # type: ignore[misc]
    assert results == [(n, "aioinfer-device") for n in range(50)]
    assert order == list(range(50))
    await thread.aclose()


async def test_an_error_reaches_its_caller_and_nobody_else() -> None:
    thread = await opened()
    first, second = thread.submit(lambda: 1 // 0), thread.submit(lambda: "fine")
    with pytest.raises(ZeroDivisionError):
        await first
    assert await second == "fine"
    await thread.aclose()


async def test_a_future_resolves_when_the_event_completes_and_not_before() -> None:
    device = DeferredDevice()
    thread = await opened(device)
    first = thread.submit(lambda: "first")
    while not device.pending:
        await asyncio.sleep(0)
    assert not first.done()
    device.pending.pop()()
    assert await first == "first"
    await thread.aclose()
    assert device.closed_by == "aioinfer-device"


async def test_a_cancelled_future_is_left_alone_by_its_event() -> None:
    device = DeferredDevice()
    thread = await opened(device)
    future = thread.submit(lambda: 1)
    while not device.pending:
        await asyncio.sleep(0)
    future.cancel()
    device.pending.pop()()
    await asyncio.sleep(0)
    assert future.cancelled()
    await thread.aclose()


async def test_terminating_drops_what_is_queued() -> None:
    thread = await opened()
    at_work, go_on = threading.Event(), threading.Event()

    def work() -> str:
        at_work.set()
        go_on.wait(60)
        return "done"

    running, queued = thread.submit(work), thread.submit(lambda: "never")
    while not at_work.is_set():
        await asyncio.sleep(0)
    thread.terminate()
    with pytest.raises(EngineClosed):
        thread.submit(lambda: 1)
    go_on.set()
    assert await running == "done"
    with pytest.raises(asyncio.CancelledError):
        await queued
    await thread.aclose()
    assert not any(t.name == "aioinfer-device" for t in threading.enumerate())


async def test_closing_twice_and_closing_what_was_never_opened() -> None:
    thread = await opened()
    await thread.aclose()
    await thread.aclose()
    await DeviceThread(CpuDevice, asyncio.get_running_loop()).aclose()


async def test_a_device_that_cannot_be_opened_says_so_and_leaves_no_thread() -> None:
    def fail() -> Any:
        raise BackendUnavailable("no such device")

    thread = DeviceThread(fail, asyncio.get_running_loop())
    with pytest.raises(BackendUnavailable, match="no such device"):
        await thread.open()
    await thread.aclose()
    assert not any(t.name == "aioinfer-device" for t in threading.enumerate())


async def test_a_device_whose_scope_cannot_be_entered_says_so_and_leaves_no_thread() -> None:
    class Scopeless(CpuDevice):
        def scope(self) -> Any:
            raise ValueError("no such number of threads")

    thread = DeviceThread(Scopeless, asyncio.get_running_loop())
    with pytest.raises(ValueError, match="no such number"):
        await thread.open()
    await thread.aclose()
    assert not any(thread.name == "aioinfer-device" for thread in threading.enumerate())


def test_a_loop_that_was_closed_meanwhile_harms_nobody() -> None:
    go_on = threading.Event()
    threads = []

    async def main() -> None:
        thread = await opened()
        thread.submit(lambda: go_on.wait(60))
        thread.terminate()
        threads.append(thread)

    asyncio.run(main())
    go_on.set()
    threads[0]._thread.join(60)
    assert not threads[0]._thread.is_alive()
