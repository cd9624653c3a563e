"""Counters, gauges and histograms of one engine, in Prometheus' exposition format.

Owns the numbers of one `Engine` in a registry of its own, so that two engines in one process do not meet.
Everything is called on the event loop's thread; observing costs well under a microsecond (a bisection and two
additions, no locks).  Gauges are not kept: they are read from the state itself when someone scrapes, so they
cannot be stale.  Does not serve HTTP and does not know the scheduler.

Metric stems are those that vLLM made common, under the prefix ``aioinfer:``, with a ``model_name`` label.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from aioinfer.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.core import Metric

PREFIX = "aioinfer:"

# Bounds are wide enough for a small model on a CPU and a large one on an accelerator; guessed, not fitted.
LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
INTER_TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
LOOP_LAG_BOUNDS_S = (0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
TOKEN_BOUNDS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 32768.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What the engine holds right now.

    Attributes:
        num_running: sequences that own blocks and take part in steps.
        num_waiting: requests that wait for their first step, preempted ones included.
        num_preempted: those of the waiting that ran before and lost their blocks.
        num_kv_blocks: blocks of the KV pool.
        num_kv_blocks_used: blocks that belong to a sequence.
        waiting_tokens: prompt tokens of the waiting requests.
    """

    num_running: int
    num_waiting: int
    num_preempted: int
    num_kv_blocks: int
    num_kv_blocks_used: int
    waiting_tokens: int

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV pool that is in use, 0 to 1."""
        return self.num_kv_blocks_used / self.num_kv_blocks if self.num_kv_blocks else 0.0


class Histogram:
    """How often a value fell between two bounds, and the sum of all values.

    Args:
        bounds: ascending upper bounds, each inclusive; values above the last one are counted too.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Record `value`, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    @property
    def count(self) -> int:
        """How many values were recorded."""
        return sum(self._counts)

    @property
    def sum(self) -> float:
        """Sum of the values recorded."""
        return self._sum

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound as Prometheus writes it, values up to it), the last bound being +Inf."""
        bounds = (*map(str, self._bounds), "+Inf")
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))


class Metrics(Collector):
    """The numbers of one engine.

    An embedding program can scrape them together with its own: this object is a Prometheus collector, and
    ``registry.register(engine.metrics)`` adds it to another registry.

    Args:
        stats: reads the engine's present state; called once per scrape.
        model_name: value of the ``model_name`` label.
    """

    def __init__(self, stats: Callable[[], EngineStats], model_name: str) -> None:
        self._stats = stats
        self._labels = {"model_name": model_name}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._finished = dict.fromkeys(FinishReason, 0)
        self._rejections: dict[str, int] = {}
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._preemptions = 0
        self._steps = Histogram(TOKEN_BOUNDS)
        self._time_to_first_token = Histogram(LATENCY_BOUNDS_S)
        self._inter_token = Histogram(INTER_TOKEN_BOUNDS_S)
        self._end_to_end = Histogram(LATENCY_BOUNDS_S)
        self._queue_time = Histogram(LATENCY_BOUNDS_S)
        self._request_prompt_tokens = Histogram(TOKEN_BOUNDS)
        self._request_generation_tokens = Histogram(TOKEN_BOUNDS)
        self.loop_lag = Histogram(LOOP_LAG_BOUNDS_S)
        """Event-loop lag in seconds; a `LoopLagProbe` feeds it."""

    def request_finished(
        self,
        *,
        reason: FinishReason,
        prompt_tokens: int,
        completion_tokens: int,
        queue_s: float | None,
        ttft_s: float | None,
        e2e_s: float,
    ) -> None:
        """Record the end of a request, however it ended; once per request.

        Args:
            queue_s: from arrival to the first step it took part in; None if there was none.
            ttft_s: from arrival to the first token; None if there was none.
            e2e_s: from arrival to the end.
        """
        self._finished[reason] += 1
        self._prompt_tokens += prompt_tokens
        self._generation_tokens += completion_tokens
        self._request_prompt_tokens.observe(prompt_tokens)
        self._request_generation_tokens.observe(completion_tokens)
        if queue_s is not None:
            self._queue_time.observe(queue_s)
        if ttft_s is not None:
            self._time_to_first_token.observe(ttft_s)
        self._end_to_end.observe(e2e_s)

    def inter_token(self, seconds: float, count: int = 1) -> None:
        """Record the time between two tokens of a request, or of `count` requests that share it."""
        self._inter_token.observe(seconds, count)

    def step_finished(self, *, num_tokens: int, num_preempted: int) -> None:
        """Record a step of `num_tokens` tokens whose planning preempted `num_preempted` sequences."""
        self._steps.observe(num_tokens)
        self._preemptions += num_preempted

    def rejected(self, reason: str) -> None:
        """Record a request refused at admission; `reason` is a short fixed word, never the client's text."""
        self._rejections[reason] = self._rejections.get(reason, 0) + 1

    def render(self) -> tuple[bytes, str]:
        """The scrape: body and content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterator[Metric]:
        """Prometheus' collector protocol."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, text, value in (
            ("num_requests_running", "Requests that take part in steps.", stats.num_running),
            ("num_requests_waiting", "Requests that wait for a step.", stats.num_waiting),
            ("num_requests_preempted", "Waiting requests that lost their blocks.", stats.num_preempted),
            ("num_tokens_waiting", "Prompt tokens of the waiting requests.", stats.waiting_tokens),
            ("kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", stats.kv_cache_usage),
            ("kv_cache_blocks", "Blocks of the KV cache.", stats.num_kv_blocks),
            ("kv_cache_blocks_used", "Blocks of the KV cache in use.", stats.num_kv_blocks_used),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=tuple(self._labels))
            gauge.add_metric(tuple(self._labels.values()), value)
            yield gauge

    def _counters(self) -> Iterator[Metric]:
        for name, text, value in (
            ("num_preemptions", "Sequences that lost their blocks to others.", self._preemptions),
            ("prompt_tokens", "Prompt tokens of the requests that ended.", self._prompt_tokens),
            ("generation_tokens", "New tokens of the requests that ended.", self._generation_tokens),
        ):
            counter = CounterMetricFamily(PREFIX + name, text, labels=tuple(self._labels))
            counter.add_metric(tuple(self._labels.values()), value)
            yield counter
        yield self._labelled_counter(
            "request_success", "Requests that ended, by reason.", "finished_reason", self._finished
        )
        yield self._labelled_counter(
            "admission_rejections", "Requests refused at admission, by reason.", "reason", self._rejections
        )

    def _labelled_counter(
        self, name: str, text: str, label: str, values: dict[str, int] | dict[FinishReason, int]
    ) -> Metric:
        counter = CounterMetricFamily(PREFIX + name, text, labels=(*self._labels, label))
        for key, value in values.items():
            counter.add_metric((*self._labels.values(), str(key)), value)
        return counter

    def _histograms(self) -> Iterator[Metric]:
        for name, text, histogram in (
            ("iteration_tokens_total", "Tokens per step.", self._steps),
            ("time_to_first_token_seconds", "From arrival to the first token.", self._time_to_first_token),
            ("inter_token_latency_seconds", "Between two tokens of a request.", self._inter_token),
            ("e2e_request_latency_seconds", "From arrival to the end.", self._end_to_end),
            ("request_queue_time_seconds", "From arrival to the first step.", self._queue_time),
            ("request_prompt_tokens", "Prompt tokens per request.", self._request_prompt_tokens),
            ("request_generation_tokens", "New tokens per request.", self._request_generation_tokens),
            ("loop_lag_seconds", "How late the event loop ran a timer.", self.loop_lag),
        ):
            family = HistogramMetricFamily(PREFIX + name, text, labels=tuple(self._labels))
            family.add_metric(tuple(self._labels.values()), histogram.cumulative(), histogram.sum)
            yield family
