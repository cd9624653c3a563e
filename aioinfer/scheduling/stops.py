"""Which sampled tokens end a sequence.  (Stop strings are text's business.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioinfer.types import FinishReason

if TYPE_CHECKING:
    from aioinfer.scheduling.sequence import Sequence


def token_stop(sequence: Sequence, token: int) -> tuple[FinishReason, int | None] | None:
    """Why `token`, just appended, ends the sequence, and the token id to blame; None if it goes on.

    A token that the request named beats the model's own end, which beats the length.
    """
    if token in sequence.params.stop_token_ids:
        return FinishReason.STOP, token
    if token in sequence.eos_token_ids and not sequence.params.ignore_eos:
        return FinishReason.STOP, None
    if sequence.num_generated >= sequence.max_tokens:
        return FinishReason.LENGTH, None
    return None
