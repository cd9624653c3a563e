"""What a model's forward pass is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from aioinfer.models.attention.base import StepAttention


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """A ragged step: prefill chunks and decode rows in one.

    Attributes:
        input_ids: [T].
        positions: [T] of each token in its sequence.
        sample_tokens: [S] indices in T of the tokens to sample after; None means every token.
        attention: over this step's rows.
    """

    input_ids: Tensor
    positions: Tensor
    sample_tokens: Tensor | None
    attention: StepAttention
