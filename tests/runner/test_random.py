"""Random numbers by seed and position."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from aioinfer.runner.random import uniform
from aioinfer.types import MAX_SEED

seeds = st.integers(0, MAX_SEED)


def draw(seed: int, position: int) -> float:
    return float(uniform(np.array([seed]), np.array([position]))[0])


@given(rows=st.lists(st.tuples(seeds, st.integers(0, 2**31)), min_size=1, max_size=20))
def test_a_number_depends_on_its_own_seed_and_position_only(rows: list[tuple[int, int]]) -> None:
    together = uniform(np.array([s for s, _ in rows]), np.array([p for _, p in rows]))
    assert together.tolist() == [draw(seed, position) for seed, position in rows]
    assert ((together >= 0) & (together < 1)).all()


def test_the_numbers_of_a_seed_are_uniform_and_independent() -> None:
    positions = np.arange(100_000)
    for seed in (0, 1, MAX_SEED):
        numbers = uniform(np.full_like(positions, seed), positions)
        counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
        chi_square = ((counts - 2000) ** 2 / 2000).sum()
        assert chi_square < 90  # 49 degrees of freedom: exceeded once in 3000 draws
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.015


def test_neighbouring_seeds_are_independent() -> None:
    numbers = uniform(np.arange(100_000), np.zeros(100_000, np.int64))
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.015
    shifted = uniform(np.arange(1000), np.arange(1000))
    assert len(set(shifted.tolist())) == 1000
