"""Quantiles agree with the standard library's and with the samples behind a histogram."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioinfer.telemetry.quantiles import bucket_quantile, quantile


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_quantile_is_the_inclusive_one(samples: list[float]) -> None:
    samples.sort()
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    assert quantile(samples, 0.5) == pytest.approx(cuts[49], abs=1e-6)
    assert quantile(samples, 0.99) == pytest.approx(cuts[98], abs=1e-6)


def test_quantile_of_few() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.99) == 3.0


def test_bucket_quantile() -> None:
    buckets = [(1.0, 0.0), (2.0, 90.0), (5.0, 99.0), (float("inf"), 100.0)]
    assert bucket_quantile(buckets, 0.5) == 2.0
    assert bucket_quantile(buckets, 0.99) == 5.0
    assert bucket_quantile(buckets, 1.0) == float("inf")
    assert bucket_quantile([(1.0, 0.0), (float("inf"), 0.0)], 0.5) is None
    assert bucket_quantile([], 0.5) is None
