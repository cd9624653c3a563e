"""A small named thread pool for CPU-bound text work: templates, tokenisation, large detokenisations.

Owns its threads.  `run` is called on one event loop; the functions run in the pool's threads.  A slot is
held until the function has really ended, even when the caller was cancelled, so that no queue builds up
inside the executor.  It does not make work interruptible (keep jobs short or bounded), and it does not
free the loop from functions that hold the GIL.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from aioinfer.errors import EngineClosed

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class TextPool:
    """At most `num_threads` functions at once; further callers wait on the loop, first come first served.

    Args:
        num_threads: threads, at least 1; they start when first needed.
        name: prefix of the threads' names.
    """

    def __init__(self, num_threads: int, name: str = "aioinfer-text") -> None:
        self._num_threads = num_threads
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._slots = asyncio.Semaphore(num_threads)
        self._closed = False

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """The result of `function(*args)`, computed in a thread of the pool.

        Cancelling the caller drops a job that has not started; one that has runs on and its result is
        dropped.

        Raises:
            EngineClosed: the pool is closed, or was before the job started.
        """
        await self._slots.acquire()
        if self._closed:
            self._slots.release()
            raise _closed()
        job = self._executor.submit(function, *args)
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def ended(job: Future[T]) -> None:
            try:
                loop.call_soon_threadsafe(self._settle, job, outcome)
            except RuntimeError:
                # The loop has been closed, and with it everybody who could wait for the outcome or a slot.
                if not loop.is_closed():
                    raise

        job.add_done_callback(ended)
        try:
            return await outcome
        except asyncio.CancelledError:
            job.cancel()
            raise

    def close(self) -> None:
        """Join the threads; jobs that have not started fail with `EngineClosed`.

        Blocks until the running functions end.  Idempotent.
        """
        self._closed = True
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def aclose(self) -> None:
        """As `close`, but the running functions are awaited."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        for _ in range(self._num_threads):  # each slot comes back when its function has ended
            await self._slots.acquire()
        for _ in range(self._num_threads):
            self._slots.release()
        self._executor.shutdown(wait=True)

    def _settle(self, job: Future[T], outcome: asyncio.Future[T]) -> None:
        self._slots.release()
        if outcome.done():  # the caller was cancelled
            return
        if job.cancelled():
            outcome.set_exception(_closed())
        elif (error := job.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(job.result())


def _closed() -> EngineClosed:
    return EngineClosed("the text pool is closed: the engine is not open or is shutting down")
