"""What attention needs to know about a step, and what a backend gives.

Ragged batches: the rows' tokens one after another, decode rows (one token each) first, then prefill chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decode rows whose cached lengths are alike.

    Attributes:
        rows: [N] which rows of the step; None means all decode rows, in order.
        block_tables: [N, M] blocks in order of position, padded with the scratch block.
        kv_lengths: [N] tokens to attend to, the row's own included.
    """

    rows: Tensor | None
    block_tables: Tensor
    kv_lengths: Tensor


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One prompt chunk.

    Attributes:
        offset: index in T of its first token.
        num_tokens: its length.
        num_cached: tokens of the sequence cached before it.
        block_table: [M] blocks in order of position, the chunk's own included.
    """

    offset: int
    num_tokens: int
    num_cached: int
    block_table: Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step.

    Attributes:
        slot_mapping: [T] where each token's key and value go: block * block_size + offset in the block.
        num_decode: decode rows, which are also the first tokens.
        decode_groups: the decode rows, grouped.
        prefill_chunks: the other rows.
    """

    slot_mapping: Tensor
    num_decode: int
    decode_groups: tuple[DecodeGroup, ...]
    prefill_chunks: tuple[PrefillChunk, ...]


class StepAttention(Protocol):
    """Attention of one step over the paged cache; one object per step, so that steps can overlap."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Cache key and value [T, K, D], then attend with query [T, H, D]; returns [T, H * D]."""


class AttentionBackend(Protocol):
    """Attention over caches of one device: per layer, keys and values [num_blocks, block_size, K, D]."""

    def begin(self, metadata: AttentionMetadata) -> StepAttention:
        """Prepare what all layers of a step share."""
