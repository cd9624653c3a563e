"""Wherever a request is cancelled, nothing of it is left: no block, no task, no thread."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import types
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.engine.scripted import ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator


async def awaits(engine: ScriptedEngine) -> object:
    return await engine.generate("some prompt", max_tokens=6)


async def chats(engine: ScriptedEngine) -> object:
    return await engine.chat([{"role": "user", "content": "hi"}], max_tokens=6)


async def iterates(engine: ScriptedEngine) -> object:
    async with engine.stream("some prompt", max_tokens=6) as stream:
        return [delta async for delta in stream]


async def iterates_slowly(engine: ScriptedEngine) -> object:
    async with engine.stream("some prompt", max_tokens=6) as stream:
        async for _ in stream:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    return None


async def breaks(engine: ScriptedEngine) -> object:
    async with engine.stream("some prompt", max_tokens=60) as stream:
        async for _ in stream:
            break
    return None


async def raises(engine: ScriptedEngine) -> object:
    with contextlib.suppress(ValueError):
        async with engine.stream("some prompt", max_tokens=60) as stream:
            async for _ in stream:
                raise ValueError
    return None


async def enters_only(engine: ScriptedEngine) -> object:
    async with engine.stream("some prompt", max_tokens=60):
        return None


async def stops(engine: ScriptedEngine) -> object:
    return await engine.generate("some prompt", max_tokens=60, stop=["a", "e", "i"])


async def preempts(engine: ScriptedEngine) -> object:
    return await asyncio.gather(*(engine.generate("x" * 30, max_tokens=20) for _ in range(4)))


USES = [awaits, chats, iterates, iterates_slowly, breaks, raises, enters_only, stops, preempts]


class Interrupted(Exception):
    """The coroutine was cancelled where it was told to be."""


@types.coroutine
def interrupt_at(coroutine: Coroutine[Any, Any, object], point: int) -> Generator[Any, Any, int]:
    """Cancel `coroutine` at its `point`-th suspension, as a task would; else, how many it had."""
    running = coroutine.__await__()
    value = None
    for count in itertools.count():
        try:
            waits_for = running.send(value)
        except StopIteration:
            return count
        if count < point:
            value = yield waits_for
            continue
        if waits_for is not None:
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(lambda future: future.cancelled() or future.exception())
            waits_for.cancel()
        try:
            running.throw(asyncio.CancelledError())
        except asyncio.CancelledError:
            raise Interrupted from None
        raise AssertionError("the coroutine went on after being cancelled")
    raise AssertionError


async def assert_nothing_is_left(engine: ScriptedEngine, tasks: set[asyncio.Task[Any]]) -> None:
    while asyncio.all_tasks() > tasks:  # a gather's children end after it
        await asyncio.sleep(0)
    await engine.settle()
    assert engine.stats().num_running == engine.stats().num_waiting == 0
    assert asyncio.all_tasks() == tasks
    assert (await engine.generate("next", max_tokens=3)).usage.completion_tokens == 3


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_cancelled_at_every_await(use: Callable[..., Any], depth: int) -> None:
    async with ScriptedEngine(pipeline_depth=depth, num_kv_blocks=12, block_size=8) as engine:
        await engine.generate("warm up", max_tokens=2)
        tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
        for point in itertools.count():
            try:
                await interrupt_at(use(engine), point)
            except Interrupted:
                await assert_nothing_is_left(engine, tasks)
            else:
                break
        assert point > 0
        assert set(threading.enumerate()) <= threads | {
            t for t in threading.enumerate() if t.name.startswith("aioinfer-text")
        }


@settings(max_examples=40, deadline=None)
@given(
    uses=st.lists(st.tuples(st.sampled_from(USES), st.integers(0, 60)), min_size=1, max_size=12),
    depth=st.integers(1, 2),
)
def test_many_tasks_cancelled_at_random_moments(
    uses: list[tuple[Callable[..., Awaitable[object]], int]], depth: int
) -> None:
    async def main() -> None:
        async with ScriptedEngine(pipeline_depth=depth, num_kv_blocks=12, block_size=8) as engine:
            tasks = asyncio.all_tasks()
            running = [asyncio.ensure_future(use(engine)) for use, _ in uses]
            for turn in range(61):
                for task, (_, when) in zip(running, uses, strict=True):
                    if when == turn:
                        task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait(running)
            for task in running:
                assert task.cancelled() or task.exception() is None
            await assert_nothing_is_left(engine, tasks)

    asyncio.run(main())


async def test_a_timeout_ends_the_request() -> None:
    async with ScriptedEngine() as engine:
        engine.runner.gate.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await engine.generate("x", max_tokens=1000)
        engine.runner.gate.set()
        await engine.settle()


async def test_a_consumer_cancelled_between_two_iterations_leaves_nothing() -> None:
    """BUGS B16."""
    async with ScriptedEngine() as engine:
        busy = asyncio.Event()

        async def consume() -> None:
            async with engine.stream("x", max_tokens=2000) as stream:
                async for _ in stream:
                    busy.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(consume())
        await busy.wait()
        task.cancel()
        await asyncio.wait([task])
        assert engine.stats().num_running == 0
        await engine.settle()


async def test_mass_cancellation_shows_in_the_next_scrape() -> None:
    """BUGS B69: gauges come from the state itself, and each ended request is counted once."""
    async with ScriptedEngine(max_num_seqs=20) as engine:
        streams = [engine.stream("x", max_tokens=2000) for _ in range(50)]
        for stream in streams:
            await stream.__aenter__()
        await anext(streams[0])
        for stream in streams:
            stream.cancel()
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        body, _ = engine.metrics.render()
        assert b'request_success_total{finished_reason="abort",model_name="scripted"} 50.0' in body
        await engine.settle()
        assert engine.stats().num_kv_blocks_used == 0


async def test_a_cancelled_wait_for_the_text_pool_gives_its_place_back() -> None:
    async with ScriptedEngine(text_threads=1, max_waiting=3) as engine:
        blocked = threading.Event()
        assert engine._pool is not None
        hog = asyncio.create_task(engine._pool.run(blocked.wait, 60))
        waiting = [asyncio.create_task(engine.generate("x", max_tokens=1)) for _ in range(3)]
        await asyncio.sleep(0)
        assert engine.stats().num_waiting == 3
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert engine.stats().num_waiting == 0
        blocked.set()
        await hog
        assert (await engine.generate("x", max_tokens=1)).usage.completion_tokens == 1
