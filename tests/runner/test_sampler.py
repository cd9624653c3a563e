"""Sampling against transformers' logits processors, and against itself in other company."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from aioinfer.runner.sampler import NUCLEUS_GUESS, SamplingBatch, _threshold, sample

if TYPE_CHECKING:
    from torch import Tensor

VOCAB_SIZE = 2000


def batch(*rows: dict[str, float], vocab_size: int = VOCAB_SIZE) -> SamplingBatch:
    """A batch in which every row draws."""

    def column(name: str, default: float) -> Tensor:
        return torch.tensor([row.get(name, default) for row in rows], dtype=torch.float64)

    top_ks = column("top_k", vocab_size).long()
    top_ps, min_ps = column("top_p", 1.0), column("min_p", 0.0)
    filtering = top_ks[top_ks < vocab_size]
    return SamplingBatch(
        random_rows=None,
        temperatures=column("temperature", 1.0),
        uniforms=column("uniform", 0.5),
        top_ks=top_ks,
        top_ps=top_ps,
        min_ps=min_ps,
        max_top_k=int(filtering.max()) if len(filtering) else 0,
        any_top_p=bool((top_ps < 1).any()),
        any_min_p=bool((min_ps > 0).any()),
    )


def kept(logits: Tensor, row: dict[str, float]) -> Tensor:
    """Which tokens may be drawn, [V]."""
    parameters = batch(row, vocab_size=logits.shape[1])
    logits = logits / row.get("temperature", 1.0)
    threshold = _threshold(logits, parameters)
    return torch.ones(logits.shape[1], dtype=torch.bool) if threshold is None else (logits >= threshold)[0]


def kept_by_transformers(logits: Tensor, row: dict[str, float]) -> Tensor:
    from transformers import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    warpers: list[Any] = [TemperatureLogitsWarper(row.get("temperature", 1.0))]
    if "top_k" in row:
        warpers.append(TopKLogitsWarper(int(row["top_k"])))
    if "top_p" in row:
        warpers.append(TopPLogitsWarper(row["top_p"]))
    if "min_p" in row:
        warpers.append(MinPLogitsWarper(row["min_p"]))
    for warper in warpers:
        logits = warper(torch.zeros((1, 1), dtype=torch.long), logits)
    return torch.isfinite(logits[0])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
    row=st.fixed_dictionaries(
        {"temperature": st.sampled_from([0.3, 1.0, 1.7])},
        optional={
            "top_k": st.sampled_from([1, 2, 50, 1500]),
            "top_p": st.sampled_from([0.05, 0.5, 0.9, 0.999]),
            "min_p": st.sampled_from([0.01, 0.2, 1.0]),
        },
    ),
)
def test_filters_keep_what_transformers_keeps(seed: int, spread: float, row: dict[str, float]) -> None:
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * spread
    ours, theirs = kept(logits, row), kept_by_transformers(logits, row)
    # The running sums are rounded differently: at the edge of the nucleus one token may differ.
    assert (ours != theirs).sum() <= (1 if "top_p" in row else 0)
    assert ours[logits.argmax()]


def test_top_p_looks_beyond_its_first_guess_when_it_must() -> None:
    logits = torch.zeros(1, 4 * NUCLEUS_GUESS)
    logits[0] = torch.linspace(0, 0.01, 4 * NUCLEUS_GUESS)
    assert kept(logits, {"top_p": 0.9}).sum() == pytest.approx(0.9 * 4 * NUCLEUS_GUESS, rel=0.02)


def test_a_draw_is_the_inverse_of_the_cumulative_distribution() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.4, 0.5])
    uniforms = [0.0, 0.0999, 0.1001, 0.4999, 0.5001, 1 - 2**-53]
    rows = [{"uniform": u} for u in uniforms]
    logits = probabilities.log().repeat(len(rows), 1)
    assert sample(logits, batch(*rows, vocab_size=4)).tolist() == [0, 0, 2, 2, 3, 3]


def test_draws_follow_the_distribution() -> None:
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(0))
    uniforms = np.random.default_rng(0).random(20_000)
    rows = [{"uniform": float(u), "temperature": 0.7} for u in uniforms]
    tokens = sample(logits.repeat(len(rows), 1), batch(*rows, vocab_size=20))
    expected = torch.softmax(logits[0] / 0.7, dim=0) * len(rows)
    counts = torch.bincount(tokens, minlength=20)
    assert (((counts - expected) ** 2 / expected).sum()) < 50  # 19 degrees of freedom


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "uniform": st.floats(0, 1, exclude_max=True),
                "temperature": st.sampled_from([0.5, 1.0]),
                "top_k": st.sampled_from([3, 40, VOCAB_SIZE]),
                "top_p": st.sampled_from([0.3, 0.95, 1.0]),
                "min_p": st.sampled_from([0.0, 0.1]),
            }
        ),
        min_size=2,
        max_size=6,
    )
)
def test_a_row_gets_what_it_gets_alone(rows: list[dict[str, float]]) -> None:
    logits = torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(3)) * 2
    together = sample(logits.clone(), batch(*rows)).tolist()
    alone = [int(sample(logits[i : i + 1].clone(), batch(row))) for i, row in enumerate(rows)]
    assert together == alone


def test_greedy_and_random_rows_mix() -> None:
    logits = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(4))
    mixed = batch({"uniform": 0.9})
    mixed = SamplingBatch(
        random_rows=torch.tensor([1]),
        temperatures=mixed.temperatures,
        uniforms=mixed.uniforms,
        top_ks=mixed.top_ks,
        top_ps=mixed.top_ps,
        min_ps=mixed.min_ps,
        max_top_k=0,
        any_top_p=False,
        any_min_p=False,
    )
    tokens = sample(logits.clone(), mixed).tolist()
    assert tokens[0] == int(logits[0].argmax())
    assert tokens[1] == int(sample(logits[1:2].clone(), batch({"uniform": 0.9})))
    assert tokens[2] == int(logits[2].argmax())
