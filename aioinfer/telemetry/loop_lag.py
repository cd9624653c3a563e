"""How late the event loop runs what is due: a heartbeat on the loop itself.

Owns one repeating timer of the running loop and the lags it saw.  Runs on the loop's thread; starts no task
and no thread, so it has nothing to await when it stops.  Measures with `time.perf_counter`, because uvloop's
own clock has millisecond resolution; uvloop also rounds timers to whole milliseconds, so lags below one are
noise.  Does not say who blocked the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aioinfer.telemetry.quantiles import quantile

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

PERIOD_S = 0.01
WINDOW = 30_000  # five minutes of heartbeats, about a megabyte


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLag:
    """Lags of the heartbeats seen, in seconds; zeros when there was none."""

    num_samples: int
    mean_s: float
    p50_s: float
    p99_s: float
    max_s: float


class LoopLagProbe:
    """Async context manager that measures the lag of the loop it is entered on.

    Args:
        observe: called with each lag in seconds, for a histogram.
        period_s: time between heartbeats.  Each stall of the loop is one sample, however long it was.
    """

    def __init__(self, observe: Callable[[float], None] | None = None, *, period_s: float = PERIOD_S) -> None:
        self._observe = observe
        self._period_s = period_s
        self._lags: deque[float] = deque(maxlen=WINDOW)
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Measure the running loop, from now on."""
        self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        """Measure no more; what was seen stays.  Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reset(self) -> None:
        """Forget what was seen so far."""
        self._lags.clear()

    def summary(self) -> LoopLag:
        """The lags of the last five minutes at most, since the last `reset`."""
        lags = sorted(self._lags)
        return LoopLag(
            num_samples=len(lags),
            mean_s=sum(lags) / len(lags) if lags else 0.0,
            p50_s=quantile(lags, 0.5) or 0.0,
            p99_s=quantile(lags, 0.99) or 0.0,
            max_s=lags[-1] if lags else 0.0,
        )

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = time.perf_counter() + self._period_s
        self._timer = loop.call_later(self._period_s, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        lag_s = max(0.0, time.perf_counter() - self._due_s)
        self._lags.append(lag_s)
        if self._observe is not None:
            self._observe(lag_s)
        self._schedule(loop)
