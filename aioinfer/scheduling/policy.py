"""Who goes first, and who has to go."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioinfer.scheduling.sequence import Sequence

OrderKey = tuple[int, float, int]


def order_key(sequence: Sequence) -> OrderKey:
    """Ascending order of service: by priority, then arrival.

    The same order, from its end, chooses whom to preempt; so what was served first is never sent back by
    what came later, and the first in order always makes progress.
    """
    return sequence.priority, sequence.arrival_s, sequence.seq_id
