"""Metrics: what is observed is what is scraped, gauges come from the state, engines do not meet."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from aioinfer.telemetry.metrics import EngineStats, Histogram, Metrics
from aioinfer.types import FinishReason

IDLE = EngineStats(
    num_running=0, num_waiting=0, num_preempted=0, num_kv_blocks=0, num_kv_blocks_used=0, waiting_tokens=0
)


def scrape(metrics: Metrics) -> dict[tuple[str, str], float]:
    """(sample name, its labels but model_name) to value."""
    samples = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "m"
            samples[sample.name, ",".join(f"{k}={v}" for k, v in sorted(labels.items()))] = sample.value
    return samples


def test_gauges_are_read_at_scrape() -> None:
    stats = IDLE
    metrics = Metrics(lambda: stats, "m")
    assert scrape(metrics)["aioinfer:kv_cache_usage_perc", ""] == 0
    stats = replace(
        IDLE,
        num_running=3,
        num_waiting=2,
        num_preempted=1,
        num_kv_blocks=8,
        num_kv_blocks_used=2,
        waiting_tokens=7,
    )
    scraped = scrape(metrics)
    assert scraped["aioinfer:num_requests_running", ""] == 3
    assert scraped["aioinfer:num_requests_waiting", ""] == 2
    assert scraped["aioinfer:num_requests_preempted", ""] == 1
    assert scraped["aioinfer:kv_cache_usage_perc", ""] == 0.25
    assert scraped["aioinfer:num_tokens_waiting", ""] == 7


def test_a_request_counts_once_in_everything() -> None:
    metrics = Metrics(lambda: IDLE, "m")
    metrics.request_finished(
        reason=FinishReason.STOP, prompt_tokens=5, completion_tokens=3, queue_s=0.5, ttft_s=0.7, e2e_s=2.0
    )
    metrics.request_finished(
        reason=FinishReason.ABORT, prompt_tokens=4, completion_tokens=0, queue_s=None, ttft_s=None, e2e_s=0.1
    )
    scraped = scrape(metrics)
    assert scraped["aioinfer:request_success_total", "finished_reason=stop"] == 1
    assert scraped["aioinfer:request_success_total", "finished_reason=abort"] == 1
    assert scraped["aioinfer:request_success_total", "finished_reason=length"] == 0
    assert scraped["aioinfer:prompt_tokens_total", ""] == 9
    assert scraped["aioinfer:generation_tokens_total", ""] == 3
    assert scraped["aioinfer:e2e_request_latency_seconds_count", ""] == 2
    assert scraped["aioinfer:time_to_first_token_seconds_count", ""] == 1
    assert scraped["aioinfer:time_to_first_token_seconds_sum", ""] == pytest.approx(0.7)
    assert scraped["aioinfer:request_queue_time_seconds_count", ""] == 1


def test_steps_gaps_and_rejections() -> None:
    metrics = Metrics(lambda: IDLE, "m")
    metrics.step_finished(num_tokens=64, num_preempted=2)
    metrics.inter_token(0.02, count=32)
    metrics.inter_token(0.5)
    metrics.rejected("queue_full")
    metrics.rejected("queue_full")
    metrics.loop_lag.observe(0.004)
    scraped = scrape(metrics)
    assert scraped["aioinfer:iteration_tokens_total_sum", ""] == 64
    assert scraped["aioinfer:num_preemptions_total", ""] == 2
    assert scraped["aioinfer:inter_token_latency_seconds_count", ""] == 33
    assert scraped["aioinfer:inter_token_latency_seconds_bucket", "le=0.02"] == 32
    assert scraped["aioinfer:admission_rejections_total", "reason=queue_full"] == 2
    assert scraped["aioinfer:loop_lag_seconds_count", ""] == 1


def test_two_engines_do_not_meet_and_can_join_another_registry() -> None:
    first, second = Metrics(lambda: IDLE, "one"), Metrics(lambda: IDLE, "two")
    first.rejected("queue_full")
    assert b'reason="queue_full"' in first.render()[0]
    assert b'reason="queue_full"' not in second.render()[0]
    registry = CollectorRegistry()
    registry.register(first)
    assert b'model_name="one"' in generate_latest(registry)


def test_model_name_is_escaped() -> None:
    body = Metrics(lambda: IDLE, 'a"b\\c\nd').render()[0].decode()
    labels = {s.labels["model_name"] for f in text_string_to_metric_families(body) for s in f.samples}
    assert labels == {'a"b\\c\nd'}


def test_content_type() -> None:
    assert Metrics(lambda: IDLE, "m").render()[1].startswith("text/plain; version=0.0.4")


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5)), max_size=30))
def test_histogram_counts_what_lies_under_each_bound(observed: list[tuple[float, int]]) -> None:
    bounds = (0.5, 1.0, 10.0)
    histogram = Histogram(bounds)
    for value, count in observed:
        histogram.observe(value, count)
    values = [value for value, count in observed for _ in range(count)]
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))
    expected = [float(sum(v <= bound for v in values)) for bound in (*bounds, float("inf"))]
    assert [count for _, count in histogram.cumulative()] == expected
    assert histogram.cumulative()[-1][0] == "+Inf"


def test_telemetry_imports_no_torch() -> None:
    code = (
        "import sys, aioinfer.telemetry.metrics, aioinfer.telemetry.loop_lag;"
        "assert 'torch' not in sys.modules and 'aiohttp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
