"""The submission thread: the only thread that talks to a device.

The loop thread hands it functions; each runs in turn, and a future on the loop resolves when the function has
returned and the device work that it queued is complete.  Neither thread ever waits for the device.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from aioinfer.errors import EngineClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioinfer.device.base import Device

T = TypeVar("T")


@dataclass(slots=True)
class _Job:
    function: Callable[[], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class DeviceThread:
    """Owns one thread and the device that it opens, uses and closes.

    All methods are called on the loop thread.

    Args:
        open_device: builds the device; called on the thread, so that thread-bound state lands there.
        loop: where futures resolve.
    """

    def __init__(self, open_device: Callable[[], Device], loop: asyncio.AbstractEventLoop) -> None:
        self._open_device = open_device
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closing = False
        self._opened: asyncio.Future[Device] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._main, name="aioinfer-device", daemon=True)

    async def open(self) -> Device:
        """Start the thread and the device.

        Raises:
            BackendUnavailable: the device cannot be used here.
        """
        self._thread.start()
        return await asyncio.shield(self._opened)

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Queue `function`; the future gets its result once the work it queued on the device is complete.

        Cancelling the future does not take back what is queued.

        Raises:
            EngineClosed: the thread is closing.
        """
        if self._closing:
            raise EngineClosed("the device is closed")
        job = _Job(function, self._loop.create_future())
        self._jobs.put(job)
        return job.future

    def terminate(self) -> None:
        """Take no more work; what is queued is dropped and its futures are cancelled.  Does not wait."""
        if not self._closing:
            self._closing = True
            self._jobs.put(None)

    async def aclose(self) -> None:
        """`terminate`, then wait until the step at work has ended and the thread is gone."""
        self.terminate()
        if self._thread.ident is not None:
            await asyncio.shield(self._ended)
            self._thread.join()

    def _main(self) -> None:
        try:
            with ExitStack() as scope:
                try:
                    device = self._open_device()
                    scope.enter_context(device.scope())
                except BaseException as error:
                    self._post(_fail, self._opened, error)
                else:
                    self._post(_resolve, self._opened, device)
                    self._run_jobs(device)
                    device.close()
        finally:
            self._post(_resolve, self._ended, None)

    def _run_jobs(self, device: Device) -> None:
        while (job := self._jobs.get()) is not None:
            if self._closing:
                self._post(job.future.cancel)
                continue
            try:
                job.result = job.function()
                device.when_done(device.record(), lambda job=job: self._post(_settle, job))  # type: ignore[misc]
            except BaseException as error:
                job.error = error
                self._post(_settle, job)
            del job

    def _post(self, callback: Callable[..., object], *args: Any) -> None:
        """Run `callback` on the loop; a loop that is closed has nobody left to tell."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


def _settle(job: _Job) -> None:
    if job.error is not None:
        _fail(job.future, job.error)
    else:
        _resolve(job.future, job.result)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
