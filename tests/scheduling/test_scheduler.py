"""Cases of the scheduler that have names."""

from __future__ import annotations

import pytest

from aioinfer.scheduling import FROM_SLOT, Scheduler, SchedulerLimits, State
from aioinfer.types import FinishReason
from tests.scheduling.simulation import SimulatedDevice, alone, make_sequence, run_until_idle


def make_scheduler(
    max_num_seqs: int = 4, token_budget: int = 16, num_blocks: int = 33, block_size: int = 4
) -> Scheduler:
    return Scheduler(
        SchedulerLimits(
            max_num_seqs=max_num_seqs,
            token_budget=token_budget,
            num_blocks=num_blocks,
            block_size=block_size,
        )
    )


def test_a_prompt_is_prefilled_and_then_decoded_from_its_slot() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, [5, 6, 7]))
    prefill = scheduler.plan()
    assert prefill is not None
    assert prefill.token_ids == (5, 6, 7)
    assert prefill.samples == (True,)
    assert prefill.num_decode == 0
    decode = scheduler.plan()  # while the prefill is in flight
    assert decode is not None
    assert decode.token_ids == (FROM_SLOT,)
    assert decode.starts == (3,)
    assert decode.num_decode == 1


def test_decode_rows_go_first_and_prompts_share_what_is_left_of_the_budget() -> None:
    scheduler = make_scheduler(token_budget=8)
    scheduler.add(make_sequence(0, [1, 2]))
    first = scheduler.plan()
    assert first is not None
    scheduler.commit(first, [9])
    scheduler.add(make_sequence(1, list(range(20))))
    plan = scheduler.plan()
    assert plan is not None
    assert plan.seq_ids == (0, 1)
    assert plan.lengths == (1, 7)
    assert plan.samples == (True, False)


def test_an_aborted_row_in_flight_leaves_no_trace() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, [1, 2]))
    plan = scheduler.plan()
    assert plan is not None
    scheduler.finish(0, FinishReason.ABORT)
    assert scheduler.pool.num_used == 1  # the step in flight still writes there
    assert scheduler.commit(plan, [3]) == []
    assert scheduler.pool.num_used == 0
    assert scheduler.is_idle


def test_aborting_without_a_step_in_flight_frees_at_once() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, [1, 2]))
    plan = scheduler.plan()
    assert plan is not None
    scheduler.commit(plan, [3])
    scheduler.finish(0, FinishReason.ABORT)
    assert scheduler.pool.num_used == 0
    assert scheduler.is_idle


def test_the_token_after_a_stop_is_dropped() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(0, [1, 2], stop_token_ids=(3,))
    scheduler.add(sequence)
    first, second = scheduler.plan(), scheduler.plan()
    assert first is not None
    assert second is not None
    assert scheduler.commit(first, [3]) == [(sequence, 3)]
    assert sequence.finish_reason is FinishReason.STOP
    assert sequence.stop_reason == 3
    assert scheduler.commit(second, [4]) == []
    assert sequence.tokens == [1, 2, 3]
    assert scheduler.is_idle


def test_nothing_is_computed_beyond_max_tokens() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, [1, 2], max_tokens=2))
    first, second = scheduler.plan(), scheduler.plan()
    assert first is not None
    assert second is not None
    assert scheduler.plan() is None  # both tokens are on their way
    scheduler.commit(first, [3])
    scheduler.commit(second, [4])
    assert scheduler.is_idle


@pytest.mark.parametrize("depth", [1, 2])
def test_preemption_changes_nothing_but_the_time(depth: int) -> None:
    scheduler = make_scheduler(max_num_seqs=4, num_blocks=9, block_size=2)
    sequences = [make_sequence(i, [i, 2, 3], max_tokens=12) for i in range(4)]
    for sequence in sequences:
        scheduler.add(sequence)
    run_until_idle(scheduler, SimulatedDevice(scheduler.limits), depth=depth)
    assert scheduler.num_preemptions > 0
    for i, sequence in enumerate(sequences):
        assert sequence.tokens[3:] == alone([i, 2, 3], sequence.params, frozenset())


def test_the_first_in_order_is_never_preempted_for_a_later_one() -> None:
    scheduler = make_scheduler(max_num_seqs=2, num_blocks=7, block_size=2)
    first = make_sequence(0, [1, 2, 3], max_tokens=9)
    scheduler.add(first)
    scheduler.add(make_sequence(1, [4, 5, 6], max_tokens=9))
    run_until_idle(scheduler, SimulatedDevice(scheduler.limits))
    assert scheduler.num_preemptions > 0
    assert first.num_preemptions == 0


def test_priority_beats_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_sequence(0, [1]))
    scheduler.add(make_sequence(1, [1], priority=-1))
    plan = scheduler.plan()
    assert plan is not None
    assert plan.seq_ids == (1,)


def test_a_sequence_that_can_never_fit_is_refused() -> None:
    scheduler = make_scheduler(num_blocks=3, block_size=4)
    with pytest.raises(ValueError, match="8 KV tokens"):
        scheduler.add(make_sequence(0, [1, 2], max_tokens=8))
    scheduler.add(make_sequence(1, [1, 2], max_tokens=7))  # the last token needs no place in the cache


def test_waiting_is_counted_in_sequences_and_tokens() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for i, length in enumerate((3, 4, 5)):
        scheduler.add(make_sequence(i, [1] * length))
    assert (scheduler.num_waiting, scheduler.num_waiting_tokens) == (3, 12)
    scheduler.plan()
    assert (scheduler.num_waiting, scheduler.num_waiting_tokens) == (2, 9)
    scheduler.finish(1, FinishReason.ABORT)
    assert (scheduler.num_waiting, scheduler.num_waiting_tokens) == (1, 5)


def test_the_queue_forgets_what_has_left_it() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for i in range(1000):
        scheduler.add(make_sequence(i, [1]))
    for i in range(999):
        scheduler.finish(i, FinishReason.ABORT)
    assert len(scheduler._waiting) < 40


def test_illegal_transitions_raise() -> None:
    sequence = make_sequence(0, [1])
    with pytest.raises(RuntimeError, match="QUEUED cannot become DECODE"):
        sequence.enter(State.DECODE)
