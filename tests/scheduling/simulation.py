"""A device for the scheduler: executes plans in order on a cache of token ids.

The "model" hashes the tokens that it finds in the cache, so a wrong block, position, slot or order of steps
changes what is generated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioinfer.scheduling import FROM_SLOT, Scheduler, SchedulerLimits, Sequence
from aioinfer.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioinfer.scheduling import StepPlan

VOCAB_SIZE = 97


def next_token(tokens: list[int]) -> int:
    """What the model generates after `tokens`."""
    value = 0
    for token in tokens:
        value = (value * 31 + token + 7) % 1_000_003
    return value % VOCAB_SIZE


def alone(prompt: list[int], params: SamplingParams, eos_token_ids: frozenset[int]) -> list[int]:
    """What a request generates when nothing else runs, said without a scheduler."""
    tokens = list(prompt)
    for _ in range(params.max_tokens or 0):
        tokens.append(next_token(tokens))
        if tokens[-1] in params.stop_token_ids:
            break
        if tokens[-1] in eos_token_ids and not params.ignore_eos:
            break
    return tokens[len(prompt) :]


class SimulatedDevice:
    """Runs plans in the order they are given, as a stream would.

    Args:
        limits: which plans must keep.
        model: what comes after the tokens of a sequence.
    """

    def __init__(self, limits: SchedulerLimits, model: Callable[[list[int]], int] = next_token) -> None:
        self._limits = limits
        self._model = model
        self._cache: dict[tuple[int, int], int] = {}
        self._tables: dict[int, dict[int, int]] = {slot: {} for slot in range(limits.max_num_seqs)}
        self._slot_tokens: dict[int, int] = {}

    def run(self, plan: StepPlan) -> list[int]:
        """Execute a step; the tokens it samples."""
        assert plan.num_tokens <= self._limits.token_budget
        assert plan.num_rows <= self._limits.max_num_seqs
        assert len(set(plan.seq_ids)) == len(set(plan.slots)) == plan.num_rows
        for assignment in plan.new_slots:
            self._tables[assignment.slot].clear()
        for block in plan.new_blocks:
            assert 0 < block.block < self._limits.num_blocks
            self._tables[block.slot][block.index] = block.block
        sampled = []
        offset = 0
        for row, slot in enumerate(plan.slots):
            ids = plan.token_ids[offset : offset + plan.lengths[row]]
            offset += plan.lengths[row]
            assert (row < plan.num_decode) == (ids == (FROM_SLOT,))
            context = self._write(slot, plan.starts[row], ids)
            if plan.samples[row]:
                self._slot_tokens[slot] = self._model(context)
                sampled.append(self._slot_tokens[slot])
        assert offset == plan.num_tokens
        return sampled

    def _write(self, slot: int, start: int, ids: tuple[int, ...]) -> list[int]:
        for position, token in enumerate(ids, start=start):
            self._cache[self._place(slot, position)] = (
                self._slot_tokens[slot] if token == FROM_SLOT else token
            )
        return [self._cache[self._place(slot, position)] for position in range(start + len(ids))]

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self._limits.block_size)
        return self._tables[slot][index], offset


def make_sequence(
    seq_id: int,
    prompt: list[int],
    *,
    eos_token_ids: frozenset[int] = frozenset(),
    priority: int = 0,
    arrival_s: float | None = None,
    **params: object,
) -> Sequence:
    sampling = SamplingParams(**{"max_tokens": 8, **params})  # type: ignore[arg-type]
    return Sequence(
        seq_id=seq_id,
        tokens=list(prompt),
        params=sampling,
        seed=0,
        max_tokens=sampling.max_tokens or 1,
        eos_token_ids=eos_token_ids,
        arrival_s=float(seq_id) if arrival_s is None else arrival_s,
        priority=priority,
    )


def run_until_idle(
    scheduler: Scheduler, device: SimulatedDevice, *, depth: int = 1, max_steps: int = 10_000
) -> int:
    """Serve everything; how many steps it took."""
    in_flight: list[tuple[StepPlan, list[int]]] = []
    steps = 0
    while not scheduler.is_idle:
        while len(in_flight) < depth and (plan := scheduler.plan()) is not None:
            in_flight.append((plan, device.run(plan)))
            steps += 1
        assert in_flight, "nothing can run, and something is left"
        scheduler.commit(*in_flight.pop(0))
        scheduler.check_integrity()
        assert steps < max_steps
    return steps
