"""Quantiles of samples and of Prometheus histograms.  Pure functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """The q-quantile (0 to 1) of ascending samples, linearly interpolated; None if there are none."""
    if not ordered:
        return None
    position = (len(ordered) - 1) * q
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def bucket_quantile(buckets: Sequence[tuple[float, float]], q: float) -> float | None:
    """Upper bound of the bucket that holds the q-quantile of a histogram; None if it is empty.

    Args:
        buckets: (upper bound, cumulative count), ascending; the last bound may be infinite.
    """
    if not buckets or buckets[-1][1] <= 0:
        return None
    rank = q * buckets[-1][1]
    return next(bound for bound, count in buckets if count >= rank and count > 0)
