"""From plans to tensors, said again without vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from aioinfer.device.cpu import CpuDevice
from aioinfer.runner.batch import BatchBuilder, BatchLimits
from aioinfer.runner.random import uniform
from aioinfer.runner.sampler import sample
from aioinfer.scheduling import (
    FROM_SLOT,
    BlockAssignment,
    Scheduler,
    SchedulerLimits,
    SlotAssignment,
    StepPlan,
)
from aioinfer.types import SamplingParams
from tests.scheduling.simulation import SimulatedDevice, make_sequence

if TYPE_CHECKING:
    from aioinfer.runner.batch import StepTensors

VOCAB_SIZE = 97
LIMITS = BatchLimits(
    max_num_seqs=6, token_budget=24, max_blocks=20, block_size=4, vocab_size=VOCAB_SIZE, steps_in_flight=2
)


def slot_mapping_of(plan: StepPlan, tables: dict[int, dict[int, int]]) -> list[int]:
    return [
        tables[slot][position // LIMITS.block_size] * LIMITS.block_size + position % LIMITS.block_size
        for slot, start, length in zip(plan.slots, plan.starts, plan.lengths, strict=True)
        for position in range(start, start + length)
    ]


def check(plan: StepPlan, step: StepTensors, tables: dict[int, dict[int, int]]) -> None:
    assert step.token_ids.tolist() == list(plan.token_ids)
    positions = [p for s, n in zip(plan.starts, plan.lengths, strict=True) for p in range(s, s + n)]
    assert step.positions.tolist() == positions
    assert step.attention.slot_mapping.tolist() == slot_mapping_of(plan, tables)
    assert step.decode_slots.tolist() == list(plan.slots[: plan.num_decode])
    last = np.cumsum(plan.lengths) - 1
    sampled = [row for row, samples in enumerate(plan.samples) if samples]
    tokens = list(range(plan.num_tokens)) if step.sample_tokens is None else step.sample_tokens.tolist()
    assert tokens == [last[row] for row in sampled]
    assert step.sample_slots.tolist() == [plan.slots[row] for row in sampled]
    check_decode_groups(plan, step, tables)
    check_prefills(plan, step, tables)


def check_decode_groups(plan: StepPlan, step: StepTensors, tables: dict[int, dict[int, int]]) -> None:
    seen: list[int] = []
    for group in step.attention.decode_groups:
        rows = list(range(plan.num_decode)) if group.rows is None else group.rows.tolist()
        seen += rows
        width = group.block_tables.shape[1]
        for row, table, length in zip(
            rows, group.block_tables.tolist(), group.kv_lengths.tolist(), strict=True
        ):
            assert length == plan.starts[row] + 1
            num_blocks = -(-length // LIMITS.block_size)
            assert num_blocks <= width <= 2 * num_blocks
            assert table[:num_blocks] == [tables[plan.slots[row]][i] for i in range(num_blocks)]
    assert sorted(seen) == list(range(plan.num_decode))


def check_prefills(plan: StepPlan, step: StepTensors, tables: dict[int, dict[int, int]]) -> None:
    offset = plan.num_decode
    rows = range(plan.num_decode, plan.num_rows)
    for row, chunk in zip(rows, step.attention.prefill_chunks, strict=True):
        assert (chunk.offset, chunk.num_tokens) == (offset, plan.lengths[row])
        assert chunk.num_cached == plan.starts[row]
        count = -(-(plan.starts[row] + plan.lengths[row]) // LIMITS.block_size)
        assert chunk.block_table.tolist() == [tables[plan.slots[row]][i] for i in range(count)]
        offset += chunk.num_tokens


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=50), st.integers(1, 20)),
        min_size=1,
        max_size=10,
    )
)
def test_every_plan_of_a_history(requests: list[tuple[list[int], int]]) -> None:
    limits = SchedulerLimits(max_num_seqs=6, token_budget=24, num_blocks=40, block_size=4)
    scheduler, device, builder = Scheduler(limits), SimulatedDevice(limits), BatchBuilder(LIMITS, CpuDevice())
    for i, (prompt, max_tokens) in enumerate(requests):
        scheduler.add(make_sequence(i, prompt, max_tokens=max_tokens))
    tables: dict[int, dict[int, int]] = {slot: {} for slot in range(6)}
    while (plan := scheduler.plan()) is not None:
        for block in plan.new_blocks:
            tables[block.slot][block.index] = block.block
        check(plan, builder.build(plan), tables)
        scheduler.commit(plan, device.run(plan))


def decode_plan(*params: SamplingParams, seeds: tuple[int, ...] = (7, 8, 9), start: int = 5) -> StepPlan:
    count = len(params)
    return StepPlan(
        step=0,
        seq_ids=tuple(range(count)),
        slots=tuple(range(count)),
        starts=(start,) * count,
        lengths=(1,) * count,
        token_ids=(FROM_SLOT,) * count,
        samples=(True,) * count,
        num_decode=count,
        new_slots=tuple(SlotAssignment(i, p, seeds[i]) for i, p in enumerate(params)),
        new_blocks=tuple(BlockAssignment(i, j, 1 + 2 * i + j) for i in range(count) for j in range(2)),
    )


def test_greedy_rows_draw_nothing() -> None:
    plan = decode_plan(SamplingParams(temperature=0), SamplingParams(temperature=0.7, top_k=1))
    assert BatchBuilder(LIMITS, CpuDevice()).build(plan).sampling.num_random == 0


def test_rows_that_draw_carry_their_parameters() -> None:
    plan = decode_plan(
        SamplingParams(temperature=0.5, top_k=40, min_p=0.1),
        SamplingParams(temperature=0),
        SamplingParams(temperature=2, top_p=0.9),
    )
    sampling = BatchBuilder(LIMITS, CpuDevice()).build(plan).sampling
    assert sampling.random_rows is not None
    assert sampling.random_rows.tolist() == [0, 2]
    assert sampling.temperatures.tolist() == [0.5, 2.0]
    assert sampling.top_ks.tolist() == [40, VOCAB_SIZE]
    assert sampling.top_ps.tolist() == [1.0, 0.9]
    assert sampling.min_ps.tolist() == [0.1, 0.0]
    assert (sampling.max_top_k, sampling.any_top_p, sampling.any_min_p) == (40, True, True)
    # The token that is drawn will be at position 6.
    assert sampling.uniforms.tolist() == uniform(np.array([7, 9]), np.array([6, 6])).tolist()


def test_extreme_parameters_stay_within_what_the_sampler_computes() -> None:
    params = SamplingParams(temperature=5e-324, top_k=10**30)
    sampling = BatchBuilder(LIMITS, CpuDevice()).build(decode_plan(params)).sampling
    assert sampling.top_ks.tolist() == [VOCAB_SIZE]
    logits = 100 * torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    best = logits.argmax(dim=-1)
    assert sample(logits, sampling).tolist() == best.tolist()


@pytest.mark.parametrize("start", [5, 6])
def test_a_draw_depends_on_the_position_and_not_on_the_step(start: int) -> None:
    drawing = SamplingParams(temperature=1)
    alone = BatchBuilder(LIMITS, CpuDevice()).build(decode_plan(drawing, start=start))
    beside = BatchBuilder(LIMITS, CpuDevice()).build(decode_plan(drawing, drawing, start=start))
    assert torch.equal(alone.sampling.uniforms, beside.sampling.uniforms[:1])
