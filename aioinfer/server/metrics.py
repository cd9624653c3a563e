"""Counters of the HTTP side, beside those of the engine.

Owns a registry of its own, so that two applications in one process do not meet.  Loop thread only.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from aioinfer.telemetry.metrics import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric


class ServerMetrics(Collector):
    """Args:
    num_websockets: reads how many are open; called once per scrape.
    """

    def __init__(self, num_websockets: Callable[[], int]) -> None:
        self._num_websockets = num_websockets
        self._answers: Counter[tuple[str, str, int]] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def answered(self, *, method: str, route: str, status: int) -> None:
        """Record a request that is over.

        Args:
            route: the pattern, not the path: its values are few.
            status: what was answered; 499 if the client left before.
        """
        self._answers[method, route, status] += 1

    def render(self) -> bytes:
        """The scrape, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Prometheus' collector protocol."""
        answers = CounterMetricFamily(
            PREFIX + "http_requests",
            "HTTP requests that are over; status 499 is a client that left before its answer.",
            labels=("method", "route", "status"),
        )
        for (method, route, status), count in self._answers.items():
            answers.add_metric((method, route, str(status)), count)
        yield answers
        yield GaugeMetricFamily(PREFIX + "websockets", "Open WebSockets.", value=self._num_websockets())
