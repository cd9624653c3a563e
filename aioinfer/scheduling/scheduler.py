"""What runs next: continuous batching with iteration-level scheduling over a paged KV cache.

Pure: standard library only, no clock, no threads, no device.  The same history of calls gives the same plans.
The step loop brackets each step with `plan` and `commit`, and may plan a step while others are in flight.

After Orca (Yu et al., OSDI 2022: iteration-level scheduling), PagedAttention (Kwon et al., SOSP 2023: block
tables, preemption by recomputation) and Sarathi-Serve (Agrawal et al., OSDI 2024: chunked prefill).
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioinfer.scheduling.blocks import BlockPool
from aioinfer.scheduling.plan import FROM_SLOT, BlockAssignment, SlotAssignment, StepPlan
from aioinfer.scheduling.policy import OrderKey, order_key
from aioinfer.scheduling.sequence import Sequence, State
from aioinfer.scheduling.stops import token_stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioinfer.types import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the scheduler may use.

    Attributes:
        max_num_seqs: most sequences admitted at once; the number of slots.
        token_budget: most tokens in one step.
        num_blocks: KV blocks of the device, the scratch block included.
        block_size: tokens per block.
    """

    max_num_seqs: int
    token_budget: int
    num_blocks: int
    block_size: int


class _PlanBuilder:
    """Collects the rows of one step."""

    def __init__(self, token_budget: int) -> None:
        self.budget = token_budget
        self.rows: list[tuple[Sequence, int, int, bool]] = []  # sequence, start, length, samples
        self.token_ids: list[int] = []
        self.num_decode = 0
        self.new_slots: list[SlotAssignment] = []
        self.new_blocks: list[BlockAssignment] = []

    def add_row(self, sequence: Sequence, token_ids: list[int], *, samples: bool) -> None:
        start = sequence.num_scheduled
        self.rows.append((sequence, start, len(token_ids), samples))
        self.token_ids += token_ids
        self.budget -= len(token_ids)
        sequence.num_scheduled = start + len(token_ids)
        sequence.num_pending += samples
        sequence.inflight += 1

    def build(self, step: int) -> StepPlan:
        sequences, starts, lengths, samples = zip(*self.rows, strict=True)
        return StepPlan(
            step=step,
            seq_ids=tuple(s.seq_id for s in sequences),
            slots=tuple(s.slot for s in sequences),
            starts=starts,
            lengths=lengths,
            token_ids=tuple(self.token_ids),
            samples=samples,
            num_decode=self.num_decode,
            new_slots=tuple(self.new_slots),
            new_blocks=tuple(self.new_blocks),
        )


class Scheduler:
    """Chooses the rows of each step, owns the block pool and the slots."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks, limits.block_size)
        self._sequences: dict[int, Sequence] = {}
        self._waiting: list[tuple[OrderKey, Sequence]] = []  # heap; entries that have left are skipped
        self._num_waiting = 0
        self._num_waiting_tokens = 0
        self._running: list[Sequence] = []  # in order of service
        self._releasing: set[int] = set()  # over or preempted, but with steps still in flight
        self._free_slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._next_step = 0
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens of the waiting sequences, all yet to be computed."""
        return self._num_waiting_tokens

    @property
    def num_preempted(self) -> int:
        """Sequences that were sent back; O(sequences)."""
        return sum(s.state is State.PREEMPTED for s in self._sequences.values())

    @property
    def max_sequence_tokens(self) -> int:
        """Longest sequence whose keys and values fit the pool alone."""
        return self.pool.capacity * self.limits.block_size

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs, or is still owned by a step in flight."""
        return not self._sequences

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence.

        Raises:
            ValueError: it has no tokens, or could never fit the KV cache.
        """
        if not sequence.tokens:
            raise ValueError("a sequence needs at least one token")
        if len(sequence.tokens) + sequence.max_tokens - 1 > self.max_sequence_tokens:
            raise ValueError(f"sequence {sequence.seq_id} does not fit {self.max_sequence_tokens} KV tokens")
        self._sequences[sequence.seq_id] = sequence
        self._enqueue(sequence)

    def finish(self, seq_id: int, reason: FinishReason, stop_reason: str | None = None) -> None:
        """End a sequence now, from outside; unknown and finished ones are left as they are.

        What it owns is free at once, or when the last step in flight with a row of it is committed.
        """
        sequence = self._sequences.get(seq_id)
        if sequence is None or sequence.state is State.FINISHED:
            return
        self._finish(sequence, reason, stop_reason)
        if sequence.inflight == 0:
            self._release(sequence)

    def plan(self) -> StepPlan | None:
        """Choose the next step; None if nothing can run until a step in flight is committed."""
        builder = _PlanBuilder(self.limits.token_budget)
        self._plan_decodes(builder)
        builder.num_decode = len(builder.rows)
        self._plan_prefills(builder)
        self._admit(builder)
        if not builder.rows:
            return None
        plan = builder.build(self._next_step)
        self._next_step += 1
        return plan

    def commit(self, plan: StepPlan, sampled: list[int]) -> list[tuple[Sequence, int]]:
        """Account for a finished step.  Steps are committed in the order they were planned.

        Args:
            plan: what was run.
            sampled: one token per row that samples, in order of the rows.

        Returns:
            Each live sequence that got a token, with it; `finish_reason` is set where the token ended it.
            Rows of sequences that had ended meanwhile leave no trace.
        """
        tokens: Iterator[int] = iter(sampled)
        progress: list[tuple[Sequence, int]] = []
        for seq_id, samples in zip(plan.seq_ids, plan.samples, strict=True):
            sequence = self._sequences[seq_id]
            sequence.inflight -= 1
            if samples:
                token = next(tokens)
                sequence.num_pending -= 1
                if sequence.state is not State.FINISHED:
                    self._append(sequence, token)
                    progress.append((sequence, token))
            if sequence.inflight == 0 and seq_id in self._releasing:
                self._release(sequence)
        return progress

    def check_integrity(self) -> None:
        """Prove that blocks, slots and lists agree; for tests and debugging.

        Raises:
            RuntimeError: they do not; the message says where.
        """
        self.pool.check_integrity(s.blocks for s in self._sequences.values())
        slots = [s.slot for s in self._sequences.values() if s.slot is not None]
        if sorted(slots + self._free_slots) != list(range(self.limits.max_num_seqs)):
            raise RuntimeError(f"slots are lost or owned twice: {slots} owned, {self._free_slots} free")
        running = {s.seq_id for s in self._running}
        for seq_id, sequence in self._sequences.items():
            if (sequence.state in (State.PREFILL, State.DECODE)) != (seq_id in running):
                raise RuntimeError(f"sequence {seq_id} is {sequence.state.name} but listed otherwise")
            if sequence.state is State.FINISHED and sequence.inflight == 0:
                raise RuntimeError(f"sequence {seq_id} is over and still held")

    def _plan_decodes(self, builder: _PlanBuilder) -> None:
        for sequence in list(self._running):
            if builder.budget == 0:
                return
            if sequence.wants_decode and self._grow(sequence, builder):
                builder.add_row(sequence, [FROM_SLOT], samples=True)

    def _plan_prefills(self, builder: _PlanBuilder) -> None:
        for sequence in self._running:
            if builder.budget == 0:
                return
            if sequence.state is State.PREFILL:
                self._add_chunk(sequence, builder)

    def _admit(self, builder: _PlanBuilder) -> None:
        while builder.budget > 0 and self._free_slots:
            sequence = self._peek_waiting()
            if sequence is None:
                return
            num_blocks = self.pool.blocks_for(len(sequence.tokens))
            # One spare block per running sequence: else the newcomer would be preempted at their next block.
            spare = min(len(self._running), self.pool.capacity - num_blocks)
            if num_blocks + spare > self.pool.num_free:
                return
            heapq.heappop(self._waiting)
            self._leave_queue(sequence)
            self._start(sequence, self.pool.allocate(num_blocks), builder)

    def _start(self, sequence: Sequence, blocks: list[int], builder: _PlanBuilder) -> None:
        sequence.slot = slot = self._free_slots.pop()
        sequence.blocks = blocks
        sequence.enter(State.PREFILL)
        insort(self._running, sequence, key=order_key)
        builder.new_slots.append(SlotAssignment(slot, sequence.params, sequence.seed))
        builder.new_blocks += [BlockAssignment(slot, i, block) for i, block in enumerate(blocks)]
        self._add_chunk(sequence, builder)

    def _add_chunk(self, sequence: Sequence, builder: _PlanBuilder) -> None:
        start = sequence.num_scheduled
        chunk = sequence.tokens[start : start + builder.budget]
        is_last = start + len(chunk) == len(sequence.tokens)
        builder.add_row(sequence, chunk, samples=is_last)
        if is_last:
            sequence.enter(State.DECODE)

    def _grow(self, sequence: Sequence, builder: _PlanBuilder) -> bool:
        """Make room for one more token, preempting from the end of the order; whether there is room now."""
        index = len(sequence.blocks)
        if sequence.num_scheduled < index * self.limits.block_size:
            return True
        while self.pool.num_free == 0:
            if self._releasing:  # blocks are on their way: wait for the step that holds them
                return False
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        (block,) = self.pool.allocate(1)
        sequence.blocks.append(block)
        builder.new_blocks.append(BlockAssignment(self._slot_of(sequence), index, block))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        sequence.enter(State.PREEMPTED)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._running.remove(sequence)
        if sequence.inflight == 0:
            self._release(sequence)
        else:
            self._releasing.add(sequence.seq_id)

    def _append(self, sequence: Sequence, token: int) -> None:
        sequence.tokens.append(token)
        stop = token_stop(sequence, token)
        if stop is not None:
            self._finish(sequence, *stop)

    def _finish(self, sequence: Sequence, reason: FinishReason, stop_reason: str | int | None) -> None:
        if sequence.state in (State.PREFILL, State.DECODE):
            self._running.remove(sequence)
        elif sequence.seq_id not in self._releasing:
            self._leave_queue(sequence)
            self._forget_waiting()
        sequence.enter(State.FINISHED)
        sequence.finish_reason = reason
        sequence.stop_reason = stop_reason
        self._releasing.add(sequence.seq_id)

    def _release(self, sequence: Sequence) -> None:
        """Take back everything a sequence owns that no step in flight uses any more."""
        self._releasing.discard(sequence.seq_id)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_scheduled = 0
        if sequence.slot is not None:
            self._free_slots.append(sequence.slot)
            sequence.slot = None
        if sequence.state is State.FINISHED:
            del self._sequences[sequence.seq_id]
        else:
            self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (order_key(sequence), sequence))
        self._num_waiting += 1
        self._num_waiting_tokens += len(sequence.tokens)

    def _leave_queue(self, sequence: Sequence) -> None:
        self._num_waiting -= 1
        self._num_waiting_tokens -= len(sequence.tokens)

    def _forget_waiting(self) -> None:
        """Drop entries of ended sequences once they are the majority, so that memory follows
        the length of the queue."""
        if len(self._waiting) > 2 * self._num_waiting + 16:
            self._waiting = [entry for entry in self._waiting if entry[1].state is not State.FINISHED]
            heapq.heapify(self._waiting)

    def _peek_waiting(self) -> Sequence | None:
        while self._waiting:
            sequence = self._waiting[0][1]
            if sequence.state is not State.FINISHED:
                return sequence
            heapq.heappop(self._waiting)
        return None

    @staticmethod
    def _slot_of(sequence: Sequence) -> int:
        if sequence.slot is None:
            raise RuntimeError(f"sequence {sequence.seq_id} is not admitted")
        return sequence.slot
