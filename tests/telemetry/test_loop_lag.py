"""LoopLagProbe: sees a blocked loop, on both loops, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
import uvloop

from aioinfer.telemetry.loop_lag import LoopLagProbe

if TYPE_CHECKING:
    from collections.abc import Callable

PERIOD_S = 0.002
STALL_S = 0.05


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_stall_is_seen(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        observed: list[float] = []
        beat = asyncio.Event()

        def observe(lag_s: float) -> None:
            observed.append(lag_s)
            beat.set()

        async with LoopLagProbe(observe, period_s=PERIOD_S) as probe:
            await beat.wait()
            beat.clear()
            time.sleep(STALL_S)  # noqa: ASYNC251 - the loop is blocked on purpose
            await beat.wait()
            lag = probe.summary()
            assert lag.num_samples == len(observed) >= 2
            assert lag.max_s == max(observed)
            assert lag.max_s >= STALL_S - 2 * PERIOD_S
            assert 0 <= lag.p50_s <= lag.p99_s <= lag.max_s
            assert lag.mean_s == pytest.approx(sum(observed) / len(observed))
            probe.reset()
            assert probe.summary().num_samples == 0
            beat.clear()
            await beat.wait()
            assert probe.summary().num_samples >= 1
        assert probe._timer is None

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


async def test_no_beat_after_stop() -> None:
    observed: list[float] = []
    async with LoopLagProbe(observed.append, period_s=0.001) as probe:
        probe.stop()
        probe.stop()
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, later.set_result, None)
    await later
    assert observed == []


async def test_summary_of_nothing() -> None:
    lag = LoopLagProbe().summary()
    assert (lag.num_samples, lag.mean_s, lag.p50_s, lag.p99_s, lag.max_s) == (0, 0.0, 0.0, 0.0, 0.0)
