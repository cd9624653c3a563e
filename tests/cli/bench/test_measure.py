"""The closed loop keeps to its concurrency, and counts what its target did."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from aioinfer.cli.bench.measure import Observation, measure, spread
from aioinfer.cli.bench.workload import Workload
from aioinfer.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Collection

WORKLOAD = Workload(concurrency=3, num_requests=7, prompt_tokens=8, output_tokens=5)


class FakeTarget:
    """Emits one event per token, one loop turn apart; fails the prompts in `failing`."""

    def __init__(self, failing: Collection[str] = (), *, with_usage: bool = True) -> None:
        self.prompts: list[str] = []
        self.most_in_flight = 0
        self._in_flight = 0
        self._failing = failing
        self._with_usage = with_usage

    async def request(self, prompt: str, output_tokens: int) -> Observation:
        self.prompts.append(prompt)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        observation = Observation()
        for _ in range(output_tokens):
            await asyncio.sleep(0)
            observation.saw_text()
        if self._with_usage:
            observation.prompt_tokens, observation.completion_tokens = 8, output_tokens * 2
        observation.ended("refused" if prompt in self._failing else None)
        self._in_flight -= 1
        return observation


async def test_counts() -> None:
    target = FakeTarget()
    result = await measure(target, WORKLOAD)
    assert target.prompts == [WORKLOAD.warm_up_prompt(), *WORKLOAD.prompts()]
    assert target.most_in_flight == 3
    assert (result.requests, result.errors, result.first_error) == (7, 0, None)
    assert (result.prompt_tokens, result.output_tokens, result.counted_from) == (56, 70, "usage")
    assert result.output_tokens_per_s == pytest.approx(70 / result.wall_s)
    assert result.tokens_per_event == 2
    assert (result.ttft_ms.count, result.itl_ms.count, result.tpot_ms.count) == (7, 28, 7)
    assert result.ttft_ms.p50 is not None
    assert result.e2e_ms.p50 is not None
    assert 0 < result.ttft_ms.p50 < result.e2e_ms.p50


async def test_counts_events_without_usage() -> None:
    result = await measure(FakeTarget(with_usage=False), WORKLOAD)
    assert (result.output_tokens, result.counted_from, result.prompt_tokens) == (35, "events", None)


async def test_failed_requests_are_counted_apart() -> None:
    result = await measure(FakeTarget(failing={WORKLOAD.prompts()[2]}), WORKLOAD)
    assert (result.requests, result.errors, result.first_error) == (7, 1, "refused")
    assert result.output_tokens == 60


async def test_a_target_that_refuses_the_first_request_is_an_error() -> None:
    with pytest.raises(RequestFailed, match="the first request failed: refused"):
        await measure(FakeTarget(failing={WORKLOAD.warm_up_prompt()}), WORKLOAD)


async def test_times_of_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.0, 13.0, 13.5, 14.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    observation = Observation(start_s=time.perf_counter())
    for _ in range(3):
        observation.saw_text()
    observation.ended()
    assert (observation.first_s, observation.last_s, observation.end_s) == (11.0, 13.5, 14.0)
    assert observation.gaps_s == [2.0, 0.5]


def test_spread() -> None:
    values = spread([0.001 * n for n in range(101)])
    assert values.count == 101
    assert [values.mean, values.p50, values.p99, values.max] == pytest.approx([50, 50, 99, 100])
    assert spread([]).p99 is None
