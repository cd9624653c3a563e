"""Random numbers that depend on a request's seed and a token's position, and on nothing else.

So a seeded request gives the same text whatever else is in the batch, however it was preempted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def uniform(seeds: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits, one per (seed, position).

    The finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014), applied to the seed and then to the
    position mixed with it.
    """
    with np.errstate(over="ignore"):
        stream = _mix(seeds.astype(np.uint64))
        bits = _mix(stream + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
