"""What crosses from the scheduler to the device: one step, as plain data.

A `StepPlan` holds integers only: it can be printed, compared, replayed, and written by hand in a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioinfer.types import SamplingParams

FROM_SLOT = -1
"""In place of a token id: take the token last sampled for the row's slot, which the host may not know yet."""


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """A sequence takes a slot with this step.

    Attributes:
        slot: row of the per-sequence buffers.
        params: how its tokens are drawn.
        seed: of its draws.
    """

    slot: int
    params: SamplingParams
    seed: int


@dataclass(frozen=True, slots=True)
class BlockAssignment:
    """A block joins the block table of a slot with this step, as its `index`-th."""

    slot: int
    index: int
    block: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One launch: B rows with T tokens in all.  Decode rows come first.

    Attributes:
        step: number of the step, from 0.
        seq_ids: [B] whose row it is.
        slots: [B] its slot.
        starts: [B] position of the row's first token, which is the number of tokens cached before it.
        lengths: [B] tokens of the row in this step.
        token_ids: [T] row after row; `FROM_SLOT` in decode rows.
        samples: [B] whether a token is sampled after the row's last token.
        num_decode: how many rows, from the first, are decode rows.
        new_slots: sequences that take a slot; to be applied before anything else.
        new_blocks: blocks that join block tables; to be applied before anything else.
    """

    step: int
    seq_ids: tuple[int, ...]
    slots: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    token_ids: tuple[int, ...]
    samples: tuple[bool, ...]
    num_decode: int
    new_slots: tuple[SlotAssignment, ...] = ()
    new_blocks: tuple[BlockAssignment, ...] = ()

    @property
    def num_rows(self) -> int:
        """B."""
        return len(self.seq_ids)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)
