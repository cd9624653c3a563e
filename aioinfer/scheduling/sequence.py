"""A request as the scheduler sees it: its tokens, its progress, what it owns.

Pure state, changed only by the scheduler.  Knows nothing of text, devices or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioinfer.types import FinishReason, SamplingParams


class State(IntEnum):
    """Where a sequence is in its life."""

    QUEUED = 0
    PREFILL = 1
    DECODE = 2
    PREEMPTED = 3
    FINISHED = 4


TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.PREFILL, State.FINISHED}),
    State.PREFILL: frozenset({State.DECODE, State.PREEMPTED, State.FINISHED}),
    State.DECODE: frozenset({State.PREEMPTED, State.FINISHED}),
    State.PREEMPTED: frozenset({State.PREFILL, State.FINISHED}),
    State.FINISHED: frozenset(),
}


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt and what has been generated for it.

    Attributes:
        seq_id: unique in its scheduler.
        tokens: the prompt, then every committed token.
        num_prompt_tokens: how many of `tokens` are the prompt.
        params: how tokens are drawn and what stops them.
        seed: for the draws; always set, `params.seed` or a drawn one.
        max_tokens: most new tokens, resolved against the context length.
        eos_token_ids: tokens by which the model says that it is done.
        arrival_s: on the caller's clock; orders sequences of equal priority.
        priority: lower goes first.
        num_scheduled: tokens whose keys and values are computed, or will be by a step in flight.
        num_pending: tokens being sampled by steps in flight, their values not yet known.
        inflight: steps in flight that have a row of this sequence; blocks and slot stay while it is above 0.
        slot: row of the device's per-sequence buffers, while admitted.
        blocks: KV blocks, in order of position, while admitted.
    """

    seq_id: int
    tokens: list[int]
    params: SamplingParams
    seed: int
    max_tokens: int
    eos_token_ids: frozenset[int]
    arrival_s: float
    priority: int = 0
    state: State = State.QUEUED
    num_scheduled: int = 0
    num_pending: int = 0
    inflight: int = 0
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    @property
    def num_generated(self) -> int:
        """New tokens committed so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_unscheduled(self) -> int:
        """Known tokens that no step has computed yet."""
        return len(self.tokens) - self.num_scheduled

    @property
    def wants_decode(self) -> bool:
        """Whether another token may be asked for, counting those already in flight."""
        return self.state is State.DECODE and self.num_generated + self.num_pending < self.max_tokens

    def enter(self, state: State) -> None:
        """Change state; a transition that is not in the table is a bug and raises."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"sequence {self.seq_id}: {self.state.name} cannot become {state.name}")
        self.state = state
