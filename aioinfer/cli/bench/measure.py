"""Drives a target in a closed loop and counts.

How it counts:

- TTFT: from just before the request is written to the first event with text.
- ITL: the gap between two events with text of one request.  An event may carry several tokens;
  `tokens_per_event` tells, and TPOT, (last - first) / (tokens - 1) of a request, does not depend on it.
- Output tokens: as the target's usage says, else the number of events with text; `counted_from` tells
  which.
- Tokens/s: all output tokens over the time from the first request's start to the last one's end.

Runs on the event loop; one worker per request in flight, each of which sends its next request when its last
ended.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aioinfer.errors import RequestFailed
from aioinfer.telemetry import LoopLagProbe
from aioinfer.telemetry.quantiles import quantile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioinfer.cli.bench.workload import Workload
    from aioinfer.telemetry import LoopLag


@dataclass(slots=True)
class Observation:
    """One request, as its client saw it.  Times are of `time.perf_counter`, in seconds."""

    start_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    last_s: float | None = None
    end_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    num_events: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None

    def saw_text(self) -> None:
        """An event with text arrived now."""
        now = time.perf_counter()
        if self.last_s is None:
            self.first_s = now
        else:
            self.gaps_s.append(now - self.last_s)
        self.last_s = now
        self.num_events += 1

    def ended(self, error: str | None = None) -> None:
        """The request is over."""
        self.end_s = time.perf_counter()
        self.error = error

    @property
    def num_tokens(self) -> int:
        """Output tokens: the target's count if it gave one, else events with text."""
        return self.num_events if self.completion_tokens is None else self.completion_tokens


class Target(Protocol):
    """Something that answers prompts."""

    async def request(self, prompt: str, output_tokens: int) -> Observation:
        """Answer one prompt greedily, with exactly `output_tokens` tokens if the target can be told to.

        A refused or broken request is an observation with `error`, not an exception.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How durations are spread, in milliseconds; None where nothing was measured."""

    count: int
    mean: float | None
    p50: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LagBounds:
    """What a server's histogram says of its event-loop lag: upper bounds in ms; None is beyond all."""

    count: int
    p50_at_most: float | None
    p99_at_most: float | None
    max_at_most: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The numbers of one run."""

    concurrency: int
    requests: int
    errors: int
    first_error: str | None
    wall_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    counted_from: str
    output_tokens_per_s: float
    requests_per_s: float
    tokens_per_event: float | None
    ttft_ms: Spread
    itl_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread
    loop_lag_ms: Spread
    server_loop_lag_ms: LagBounds | None = None


async def measure(target: Target, workload: Workload, *, num_warm_up: int = 1) -> Result:
    """Run a workload; requests that warm up come first, one by one, and do not count.

    Raises:
        RequestFailed: a request that warms up failed, so there is nothing to measure.
    """
    for _ in range(num_warm_up):
        warm_up = await target.request(workload.warm_up_prompt(), workload.output_tokens)
        if warm_up.error is not None:
            raise RequestFailed(f"the first request failed: {warm_up.error}")
    observations: list[Observation] = []
    prompts = iter(workload.prompts())
    async with LoopLagProbe() as probe:
        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as workers:
            for _ in range(workload.concurrency):
                workers.create_task(_work(target, prompts, workload.output_tokens, observations))
        wall_s = time.perf_counter() - start_s
    return _summarise(workload.concurrency, observations, wall_s, probe.summary())


async def _work(
    target: Target, prompts: Iterator[str], output_tokens: int, observations: list[Observation]
) -> None:
    for prompt in prompts:
        observation = await target.request(prompt, output_tokens)
        observations.append(observation)


def _summarise(concurrency: int, observations: list[Observation], wall_s: float, lag: LoopLag) -> Result:
    good = [o for o in observations if o.error is None]
    errors = [o.error for o in observations if o.error is not None]
    num_tokens = sum(o.num_tokens for o in good)
    num_events = sum(o.num_events for o in good)
    return Result(
        concurrency=concurrency,
        requests=len(observations),
        errors=len(errors),
        first_error=errors[0] if errors else None,
        wall_s=wall_s,
        prompt_tokens=_total([o.prompt_tokens for o in good]),
        cached_tokens=_total([o.cached_tokens for o in good]),
        output_tokens=num_tokens,
        counted_from=_counted_from(good),
        output_tokens_per_s=num_tokens / wall_s,
        requests_per_s=len(good) / wall_s,
        tokens_per_event=num_tokens / num_events if num_events else None,
        ttft_ms=spread([o.first_s - o.start_s for o in good if o.first_s is not None]),
        itl_ms=spread([gap for o in good for gap in o.gaps_s]),
        tpot_ms=spread([tpot for o in good if (tpot := _tpot_s(o)) is not None]),
        e2e_ms=spread([o.end_s - o.start_s for o in good if o.end_s is not None]),
        loop_lag_ms=Spread(
            count=lag.num_samples,
            mean=1000 * lag.mean_s,
            p50=1000 * lag.p50_s,
            p99=1000 * lag.p99_s,
            max=1000 * lag.max_s,
        ),
    )


def spread(seconds: list[float]) -> Spread:
    """Mean, median, 99th percentile and maximum of durations, in milliseconds."""
    ordered = sorted(1000 * value for value in seconds)
    return Spread(
        count=len(ordered),
        mean=sum(ordered) / len(ordered) if ordered else None,
        p50=quantile(ordered, 0.5),
        p99=quantile(ordered, 0.99),
        max=ordered[-1] if ordered else None,
    )


def _tpot_s(observation: Observation) -> float | None:
    first_s, last_s = observation.first_s, observation.last_s
    if first_s is None or last_s is None or observation.num_tokens < 2:
        return None
    return (last_s - first_s) / (observation.num_tokens - 1)


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _counted_from(observations: list[Observation]) -> str:
    with_usage = sum(o.completion_tokens is not None for o in observations)
    if with_usage == len(observations):
        return "usage"
    return "events" if with_usage == 0 else "mixed"
