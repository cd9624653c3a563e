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

    def begin(self, metadata: AttentionMetadata) -> SdpaStep:
        return SdpaStep(self, metadata)


class SdpaStep:
    """One step; see `StepAttention`."""

    def __init__(self, backend: SdpaBackend, metadata: AttentionMetadata) -> None:
        self._keys = backend.keys
        self._values = backend.values
        self._metadata = metadata
        self._masks = [_length_mask(self._span(g), g.kv_lengths) for g in metadata.decode_groups]
        self._causal = [_causal_mask(c, metadata.slot_mapping.device) for c in metadata.prefill_chunks]
        self._gathered: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._keys[layer], self._values[layer]
        slots = self._metadata.slot_mapping
        keys.flatten(0, 1).index_copy_(0, slots, key)
        values.flatten(0, 1).index_copy_(0, slots, value)
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

    def _span(self, group: DecodeGroup) -> int:
        return group.block_tables.shape[1] * self._keys[0].shape[1]

    def _decode(
        self, group: DecodeGroup, mask: Tensor, query: Tensor, keys: Tensor, values: Tensor, out: Tensor
    ) -> None:
        num_rows = group.block_tables.shape[0]
        rows = query[:num_rows] if group.rows is None else query.index_select(0, group.rows)
        gathered_keys, gathered_values = self._gather(group.block_tables.flatten(), keys, values)
        num_kv_heads, head_dim = keys.shape[2:]
        shape = (num_rows, -1, num_kv_heads, head_dim)
        attended = F.scaled_dot_product_attention(
            rows.view(num_rows, num_kv_heads, -1, head_dim),
            gathered_keys.view(shape).transpose(1, 2),
            gathered_values.view(shape).transpose(1, 2),
            attn_mask=mask,
        ).reshape(num_rows, -1, head_dim)
        if group.rows is None:
            out[:num_rows] = attended
        else:
            out.index_copy_(0, group.rows, attended)

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


def _length_mask(span: int, lengths: Tensor) -> Tensor:
    """[N, 1, 1, span], True where a key exists."""
    return (torch.arange(span, device=lengths.device) < lengths[:, None])[:, None, None, :]


def _causal_mask(chunk: PrefillChunk, device: torch.device) -> Tensor | None:
    """[L, S], True where a query may look: at the cache, itself and before.  None if plain causal."""
    if chunk.num_cached == 0:
        return None
    shape = (chunk.num_tokens, chunk.num_cached + chunk.num_tokens)
    return torch.ones(shape, dtype=torch.bool, device=device).tril_(diagonal=chunk.num_cached)
