from __future__ import annotations

import asyncio
import threading

import pytest

from aioinfer.errors import EngineClosed
from aioinfer.text.pool import TextPool


class Gate:
    """A function that says when it has started and waits to be let go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go = threading.Event()

    def __call__(self, value: object = None) -> object:
        self.started.set()
        assert self.go.wait(30)
        return value

    async def wait_started(self) -> None:
        assert await asyncio.to_thread(self.started.wait, 30)


async def test_runs_in_a_named_thread_and_returns_the_result() -> None:
    pool = TextPool(1, name="words")
    try:
        assert await pool.run(lambda a, b: a + b, "a", "b") == "ab"
        assert (await pool.run(threading.current_thread)).name.startswith("words")
    finally:
        pool.close()


async def test_an_error_reaches_the_caller() -> None:
    pool = TextPool(1)
    try:
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 / 0)
        assert await pool.run(len, "abc") == 3
    finally:
        pool.close()


async def test_a_cancelled_caller_leaves_its_slot_until_the_function_ends() -> None:
    pool, first, second = TextPool(1), Gate(), Gate()
    try:
        running = asyncio.create_task(pool.run(first))
        await first.wait_started()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        waiting = asyncio.create_task(pool.run(second, "result"))
        await asyncio.sleep(0)
        assert not second.started.is_set()
        first.go.set()
        await second.wait_started()
        second.go.set()
        assert await waiting == "result"
    finally:
        first.go.set()
        second.go.set()
        pool.close()


async def test_a_caller_cancelled_while_waiting_never_runs() -> None:
    pool, first, second = TextPool(1), Gate(), Gate()
    try:
        running = asyncio.create_task(pool.run(first))
        await first.wait_started()
        waiting = asyncio.create_task(pool.run(second))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        first.go.set()
        await running
        assert await pool.run(len, "ab") == 2
        assert not second.started.is_set()
    finally:
        first.go.set()
        pool.close()


async def test_as_many_at_once_as_there_are_threads() -> None:
    pool, gates = TextPool(2), [Gate() for _ in range(3)]
    try:
        tasks = [asyncio.create_task(pool.run(gate, n)) for n, gate in enumerate(gates)]
        await gates[0].wait_started()
        await gates[1].wait_started()
        assert not gates[2].started.is_set()
        gates[1].go.set()
        await gates[2].wait_started()
        gates[0].go.set()
        gates[2].go.set()
        assert await asyncio.gather(*tasks) == [0, 1, 2]
    finally:
        for gate in gates:
            gate.go.set()
        pool.close()


async def test_close_joins_the_threads_and_refuses_what_waits() -> None:
    pool, gate = TextPool(1, name="closing"), Gate()
    running = asyncio.create_task(pool.run(gate, "done"))
    await gate.wait_started()
    waiting = asyncio.create_task(pool.run(len, "abc"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(asyncio.to_thread(pool.close))
    await asyncio.sleep(0)
    gate.go.set()
    await closing
    assert await running == "done"
    with pytest.raises(EngineClosed):
        await waiting
    with pytest.raises(EngineClosed):
        await pool.run(len, "abc")
    assert not any(thread.name.startswith("closing") for thread in threading.enumerate())
    pool.close()


def test_a_job_may_outlive_its_loop() -> None:
    pool, gate = TextPool(1), Gate()

    async def leave_behind() -> None:
        task = asyncio.create_task(pool.run(gate))
        await gate.wait_started()
        task.cancel()

    asyncio.run(leave_behind())
    gate.go.set()
    pool.close()
