"""Opening, closing, and being a good guest."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from aioinfer.errors import ConfigError, EngineClosed, WrongLoop
from aioinfer.types import FinishReason
from tests.engine.scripted import ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import Callable

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


def on_loop(main: Any, factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> Any:
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def process_state() -> dict[str, Any]:
    return {
        "signals": {s: signal.getsignal(s) for s in signal.valid_signals()},
        "environment": dict(os.environ),
        "policy": type(asyncio.get_event_loop_policy()),
        "switch interval": sys.getswitchinterval(),
        "threads": set(threading.enumerate()),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "frozen": gc.get_freeze_count(),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "directory": os.getcwd(),
    }


async def use_engine() -> None:
    async with ScriptedEngine() as engine:
        completions = await asyncio.gather(*(engine.generate(f"{i}", max_tokens=20) for i in range(8)))
        assert all(c.usage.completion_tokens == 20 for c in completions)


@pytest.mark.parametrize("factory", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("in_thread", [False, True], ids=["main thread", "other thread"])
def test_it_serves_on_any_loop_in_any_thread(
    factory: Callable[[], asyncio.AbstractEventLoop], in_thread: bool
) -> None:
    if not in_thread:
        on_loop(use_engine(), factory)
        return
    errors: list[BaseException] = []

    def run() -> None:
        try:
            on_loop(use_engine(), factory)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == []


def test_the_process_is_the_same_before_and_after() -> None:
    on_loop(use_engine())  # imports happen once
    before = process_state()
    for _ in range(20):
        on_loop(use_engine())
    assert process_state() == before


def test_the_process_is_the_same_after_a_failed_start() -> None:
    async def fail() -> None:
        with pytest.raises(Exception, match="does not exist"):
            async with ScriptedEngine(chat_template="/no/such/file"):
                pass

    class Failing(ScriptedEngine):
        async def _load(self, *args: Any) -> Any:
            raise ConfigError("does not exist")

    async def fail_loading() -> None:
        with pytest.raises(ConfigError):
            async with Failing():
                pass

    on_loop(fail_loading())
    before = process_state()
    on_loop(fail_loading())
    assert process_state() == before


async def test_interpreter_settings_hold_while_any_engine_is_open() -> None:
    before = sys.getswitchinterval()
    first, second = ScriptedEngine(switch_interval_s=0.0005), ScriptedEngine()
    await first.__aenter__()
    await second.__aenter__()
    await first.aclose()
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    assert gc.get_freeze_count() > 0
    await second.aclose()
    assert sys.getswitchinterval() == before
    assert gc.get_freeze_count() == 0


async def test_a_program_that_froze_its_objects_keeps_them_frozen() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    try:
        async with ScriptedEngine():
            pass
        assert gc.get_freeze_count() > count - 1000  # some of them may have died since
    finally:
        gc.unfreeze()


async def test_two_engines_share_nothing() -> None:
    async with ScriptedEngine() as first, ScriptedEngine(lambda tokens: 98) as second:
        answers = await asyncio.gather(first.generate("x", max_tokens=4), second.generate("x", max_tokens=4))
        assert answers[1].text == "bbbb" != answers[0].text
        await first.aclose()
        assert (await second.generate("x", max_tokens=2)).text == "bb"


async def test_another_loop_is_refused() -> None:
    async with ScriptedEngine() as engine:

        async def call() -> None:
            await engine.generate("x")

        def elsewhere() -> None:
            with pytest.raises(WrongLoop):
                asyncio.run(call())

        thread = threading.Thread(target=elsewhere)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.001)


async def test_requests_outside_the_block_are_refused() -> None:
    engine = ScriptedEngine()
    with pytest.raises(EngineClosed, match="new"):
        await engine.generate("x")
    with pytest.raises(EngineClosed, match="async with"):
        engine.info  # noqa: B018
    async with engine:
        pass
    assert engine.state == "closed"
    with pytest.raises(EngineClosed, match="closed"):
        await engine.generate("x")
    with pytest.raises(EngineClosed, match="entered once"):
        await engine.__aenter__()
    await engine.aclose()


async def test_closing_lets_requests_finish() -> None:
    engine = ScriptedEngine()
    await engine.__aenter__()
    stream = engine.stream("x", max_tokens=300)
    await stream.__aenter__()
    closing = asyncio.create_task(engine.aclose(drain_s=60))
    await asyncio.sleep(0)
    assert engine.state == "draining"
    with pytest.raises(EngineClosed, match="draining"):
        await engine.generate("late")
    completion = await stream
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.usage.completion_tokens == 300
    await closing


async def test_closing_has_a_bound() -> None:
    engine = ScriptedEngine()
    await engine.__aenter__()
    engine.runner.gate.clear()
    stream = engine.stream("x", max_tokens=300)
    await stream.__aenter__()
    closing = asyncio.create_task(engine.aclose(drain_s=0.01))
    completion = await stream
    assert completion.finish_reason is FinishReason.ABORT
    engine.runner.gate.set()  # the step at work must end before its thread can
    await closing


async def test_terminate_is_immediate() -> None:
    engine = ScriptedEngine()
    await engine.__aenter__()
    stream = engine.stream("x", max_tokens=3000)
    await stream.__aenter__()
    engine.terminate()
    assert (await stream).finish_reason is FinishReason.ABORT
    with pytest.raises(EngineClosed):
        await engine.generate("y")
    await engine.aclose()
    assert not any(thread.name.startswith("aioinfer") for thread in threading.enumerate())


async def test_an_error_in_the_block_does_not_wait_for_requests() -> None:
    engine = ScriptedEngine(drain_s=1000)
    streams = []
    with pytest.raises(ZeroDivisionError):
        async with engine:
            stream = engine.stream("x", max_tokens=4000)
            streams.append(await stream.__aenter__())
            raise ZeroDivisionError
    assert (await streams[0]).finish_reason is FinishReason.ABORT


async def test_cancelled_while_loading_leaves_nothing() -> None:
    reached, release = threading.Event(), threading.Event()

    class Slow(ScriptedEngine):
        async def _load(self, device: Any, thread: Any, pool: Any) -> Any:
            def work() -> None:
                reached.set()
                release.wait(60)

            await thread.submit(work)
            return await super()._load(device, thread, pool)

    threads = set(threading.enumerate())
    engine = Slow()
    opening = asyncio.create_task(engine.__aenter__())
    while not reached.is_set():
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert engine.state == "closed"
    assert set(threading.enumerate()) == threads


@pytest.mark.parametrize("how", ["terminate", "aclose"])
@pytest.mark.parametrize("stage", ["device", "weights", "text"])
async def test_closed_while_loading_says_so_and_leaves_nothing(how: str, stage: str) -> None:
    reached, release = threading.Event(), threading.Event()

    def work() -> None:
        reached.set()
        release.wait(60)

    class Slow(ScriptedEngine):
        async def _load(self, device: Any, thread: Any, pool: Any) -> Any:
            if stage != "device":
                await (thread.submit(work) if stage == "weights" else pool.run(work))
            return await super()._load(device, thread, pool)

    before = process_state()
    engine = Slow()
    opening = asyncio.create_task(engine.__aenter__())
    await asyncio.sleep(0)
    while stage != "device" and not reached.is_set():
        await asyncio.sleep(0)
    closing = asyncio.create_task(engine.aclose())
    if how == "terminate":
        engine.terminate()
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(EngineClosed):
        await opening
    await closing
    assert engine.state == "closed"
    assert process_state() == before


async def test_a_second_close_does_not_cut_the_first_short() -> None:
    engine = ScriptedEngine()
    await engine.__aenter__()
    request = asyncio.create_task(engine.generate("x", max_tokens=300))
    while engine.stats().num_running == 0:
        await asyncio.sleep(0)
    await asyncio.gather(engine.aclose(), engine.aclose())
    assert (await request).finish_reason is FinishReason.LENGTH


async def test_another_loop_cannot_close_it() -> None:
    async with ScriptedEngine() as engine:
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(asyncio.run, engine.aclose())
        assert (await engine.generate("x", max_tokens=3)).usage.completion_tokens == 3
    await asyncio.to_thread(asyncio.run, engine.aclose())


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        ScriptedEngine(max_num_seqs=0)
    with pytest.raises(ConfigError, match="unknown option 'max_seqs'; known are"):
        ScriptedEngine(max_seqs=1)
    wrong: dict[str, Any] = {
        "max_model_len": 1,  # no room for a prompt and a token
        "kv_cache_tokens": 1,
        "token_budget": 10**12,
        "torch_threads": 10**12,
    }
    for option, value in wrong.items():
        with pytest.raises(ConfigError, match=f"{option}: .*(greater|less) than or equal to"):
            ScriptedEngine(**{option: value})
