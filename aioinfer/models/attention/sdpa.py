"""Paged attention on plain torch: gather a sequence's blocks, then scaled dot product attention.

For devices without a paged kernel, and the reference for those with one.  On the CPU, folding the query heads
of a group into the query length spares expanding keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from aioinfer.models.attention.base import AttentionMetadata, DecodeGroup, PrefillChunk


class SdpaBackend:
    """Args:
    keys, values: per layer, [num_blocks, block_size, K, D].
    """

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        self.keys = keys
        self.values = values
        self.slots = [(k.flatten(0, 1), v.flatten(0, 1)) for k, v in zip(keys, values, strict=True)]

    def begin(self, metadata: AttentionMetadata) -> SdpaStep:
        return SdpaStep(self, metadata)


class SdpaStep:
    """One step; see `StepAttention`."""

    def __init__(self, backend: SdpaBackend, metadata: AttentionMetadata) -> None:
        self._keys = backend.keys
        self._values = backend.values
        self._slots = backend.slots
        self._metadata = metadata
        self._masks = [self._length_mask(group) for group in metadata.decode_groups]
        self._causal = [_causal_mask(c, metadata.slot_mapping.device) for c in metadata.prefill_chunks]
        only_decodes = not metadata.prefill_chunks and len(metadata.decode_groups) == 1
        self._is_one_group = only_decodes and metadata.decode_groups[0].rows is None
        self._gathered: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._keys[layer], self._values[layer]
        key_slots, value_slots = self._slots[layer]
        key_slots.index_copy_(0, self._metadata.slot_mapping, key)
        value_slots.index_copy_(0, self._metadata.slot_mapping, value)
        if self._is_one_group:
            group = self._metadata.decode_groups[0]
            return self._attend_decode(group, self._masks[0], query, keys, values).flatten(1)
        out = torch.empty_like(query)
        for group, mask in zip(self._metadata.decode_groups, self._masks, strict=True):
            self._decode(group, mask, query, keys, values, out)
        for chunk, causal in zip(self._metadata.prefill_chunks, self._causal, strict=True):
            tokens = slice(chunk.offset, chunk.offset + chunk.num_tokens)
            if chunk.num_cached == 0:  # its keys are all in this step
                out[tokens] = _attend(query[tokens], key[tokens], value[tokens], causal)
            else:
                cached_keys, cached_values = self._gather(chunk.block_table, keys, values)
                length = chunk.num_cached + chunk.num_tokens
                out[tokens] = _attend(query[tokens], cached_keys[:length], cached_values[:length], causal)
        return out.flatten(1)

    def _length_mask(self, group: DecodeGroup) -> Tensor:
        """[N, 1, 1, S] to add to the scores: 0 where a key exists, -inf in the padding.

        A mask of truth values would be converted to this again by every layer.
        """
        cache, lengths = self._keys[0], group.kv_lengths
        span = group.block_tables.shape[1] * cache.shape[1]
        padding = torch.arange(span, device=lengths.device) >= lengths[:, None]
        return cache.new_zeros(padding.shape).masked_fill_(padding, -torch.inf)[:, None, None, :]

    def _decode(
        self, group: DecodeGroup, mask: Tensor, query: Tensor, keys: Tensor, values: Tensor, out: Tensor
    ) -> None:
        if group.rows is None:
            num_rows = self._metadata.num_decode
            out[:num_rows] = self._attend_decode(group, mask, query[:num_rows], keys, values)
        else:
            rows = query.index_select(0, group.rows)
            out.index_copy_(0, group.rows, self._attend_decode(group, mask, rows, keys, values))

    def _attend_decode(
        self, group: DecodeGroup, mask: Tensor, query: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """query [N, H, D] of a group's rows; returns [N, H, D]."""
        num_rows, (num_kv_heads, head_dim) = len(query), keys.shape[2:]
        gathered_keys, gathered_values = self._gather(group.block_tables.flatten(), keys, values)
        shape = (num_rows, -1, num_kv_heads, head_dim)
        return F.scaled_dot_product_attention(
            query.view(num_rows, num_kv_heads, -1, head_dim),
            gathered_keys.view(shape).transpose(1, 2),
            gathered_values.view(shape).transpose(1, 2),
            attn_mask=mask,
        ).reshape(num_rows, -1, head_dim)

    def _gather(self, blocks: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [num_blocks * block_size, K, D] of `blocks`.

        The buffers are shared by the layers: fresh memory for each would cost more than the copy.
        """
        buffers = self._gathered.get(len(blocks))
        if buffers is None:
            shape = (len(blocks), *keys.shape[1:])
            buffers = self._gathered[len(blocks)] = keys.new_empty(shape), values.new_empty(shape)
        torch.index_select(keys, 0, blocks, out=buffers[0])
        torch.index_select(values, 0, blocks, out=buffers[1])
        return buffers[0].flatten(0, 1), buffers[1].flatten(0, 1)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """query [L, H, D] over key, value [S, K, D]; without a mask, causal from the first key on."""
    return F.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        key.transpose(0, 1).unsqueeze(0),
        value.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=query.shape[1] != key.shape[1],
    )[0].transpose(0, 1)


def _causal_mask(chunk: PrefillChunk, device: torch.device) -> Tensor | None:
    """[L, S], True where a query may look: at the cache, itself and before.  None if plain causal."""
    if chunk.num_cached == 0:
        return None
    shape = (chunk.num_tokens, chunk.num_cached + chunk.num_tokens)
    return torch.ones(shape, dtype=torch.bool, device=device).tril_(diagonal=chunk.num_cached)
