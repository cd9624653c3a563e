"""Random histories of add, finish, plan and commit, up to two steps in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioinfer.scheduling import Scheduler, SchedulerLimits, Sequence, State
from aioinfer.types import FinishReason
from tests.scheduling.simulation import VOCAB_SIZE, SimulatedDevice, alone, make_sequence

if TYPE_CHECKING:
    from aioinfer.scheduling import StepPlan

DEPTH = 2
MAX_PROMPT, MAX_NEW = 20, 12


class SchedulerMachine(RuleBasedStateMachine):
    """Every request gets what it would get alone, and the pool is whole at every moment."""

    @initialize(
        max_num_seqs=st.integers(1, 5),
        token_budget=st.integers(1, 16),
        block_size=st.integers(1, 4),
        spare_blocks=st.integers(0, 12),
    )
    def start(self, max_num_seqs: int, token_budget: int, block_size: int, spare_blocks: int) -> None:
        one_sequence = -(-(MAX_PROMPT + MAX_NEW) // block_size)
        limits = SchedulerLimits(
            max_num_seqs=max_num_seqs,
            token_budget=token_budget,
            num_blocks=1 + one_sequence + spare_blocks,
            block_size=block_size,
        )
        self.scheduler = Scheduler(limits)
        self.device = SimulatedDevice(limits)
        self.in_flight: list[tuple[StepPlan, list[int]]] = []
        self.sequences: list[Sequence] = []
        self.prompts: list[list[int]] = []
        self.progress: dict[int, list[int]] = {}

    @rule(
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=MAX_PROMPT),
        max_tokens=st.integers(1, MAX_NEW),
        eos=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=8),
        stop_token_ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=4).map(tuple),
        ignore_eos=st.booleans(),
        priority=st.integers(-1, 1),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        eos: frozenset[int],
        stop_token_ids: tuple[int, ...],
        ignore_eos: bool,
        priority: int,
    ) -> None:
        sequence = make_sequence(
            len(self.sequences),
            prompt,
            eos_token_ids=eos,
            priority=priority,
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
        )
        self.sequences.append(sequence)
        self.prompts.append(prompt)
        self.progress[sequence.seq_id] = []
        self.scheduler.add(sequence)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.scheduler.finish(data.draw(st.integers(0, len(self.sequences) - 1)), FinishReason.ABORT)

    @precondition(lambda self: len(self.in_flight) < DEPTH)
    @rule()
    def plan(self) -> None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.in_flight.append((plan, self.device.run(plan)))

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit(self) -> None:
        for sequence, token in self.scheduler.commit(*self.in_flight.pop(0)):
            self.progress[sequence.seq_id].append(token)

    @invariant()
    def the_pool_is_whole(self) -> None:
        self.scheduler.check_integrity()

    @invariant()
    def nothing_is_held_after_the_end(self) -> None:
        for sequence in self.sequences:
            if sequence.state is State.FINISHED and sequence.inflight == 0:
                assert sequence.blocks == []
                assert sequence.slot is None

    @invariant()
    def progress_is_what_each_would_get_alone(self) -> None:
        for sequence, prompt in zip(self.sequences, self.prompts, strict=True):
            got = self.progress[sequence.seq_id]
            assert got == sequence.tokens[len(prompt) :]
            expected = alone(prompt, sequence.params, sequence.eos_token_ids)
            assert got == expected[: len(got)]
            if sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert got == expected

    def teardown(self) -> None:
        """Nobody starves: all that is left ends, within the steps that tokens and preemptions explain."""
        if not hasattr(self, "scheduler"):
            return
        tokens_left = sum(len(p) + MAX_NEW for p in self.prompts)
        for _ in range(10 + 4 * tokens_left):
            if self.scheduler.is_idle:
                break
            while len(self.in_flight) < DEPTH and (plan := self.scheduler.plan()) is not None:
                self.in_flight.append((plan, self.device.run(plan)))
            assert self.in_flight, "something is left and nothing can run"
            self.commit()
            self.scheduler.check_integrity()
        assert self.scheduler.is_idle
        assert self.scheduler.pool.num_used == 0
        assert all(s.state is State.FINISHED for s in self.sequences)
        self.progress_is_what_each_would_get_alone()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
