"""Paged attention against plain attention over each sequence's own keys and values."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from aioinfer.models.attention import create_backend
from aioinfer.models.attention.base import AttentionMetadata, DecodeGroup, PrefillChunk

BLOCK_SIZE, NUM_KV_HEADS, GROUP, HEAD_DIM = 4, 2, 3, 16

row_lengths = st.tuples(st.integers(0, 30), st.integers(1, 9))  # cached before, tokens now


def plain_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """query [L, H, D]: the last L of the S positions of keys and values [S, K, D]."""
    num_new, num_all = len(query), len(keys)
    keys, values = (x.repeat_interleave(GROUP, dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", query, keys) / math.sqrt(HEAD_DIM)
    position = torch.arange(num_all)
    hidden = position[None, :] > position[num_all - num_new :, None]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return torch.einsum("hls,shd->lhd", weights, values)


@settings(max_examples=60, deadline=None)
@given(
    decodes=st.lists(st.integers(1, 40), max_size=6),
    prefills=st.lists(row_lengths, max_size=3),
    num_groups=st.integers(1, 3),
    seed=st.integers(0, 100),
)
def test_ragged_batches(
    decodes: list[int], prefills: list[tuple[int, int]], num_groups: int, seed: int
) -> None:
    rows = [(cached, 1) for cached in decodes] + prefills
    if not rows:
        return
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    needed = [-(-(cached + new) // BLOCK_SIZE) for cached, new in rows]
    blocks = (torch.randperm(sum(needed), generator=generator) + 1).split(needed)
    # What other sequences left behind must not matter.
    cache = [random(sum(needed) + 1, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM) for _ in range(2)]
    histories = [[random(cached + new, NUM_KV_HEADS, HEAD_DIM) for _ in range(2)] for cached, new in rows]
    slots = []
    for (cached, new), table, history in zip(rows, blocks, histories, strict=True):
        positions = torch.arange(cached + new)
        where = table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        for store, values in zip(cache, history, strict=True):
            store.flatten(0, 1)[where[:cached]] = values[:cached]
        slots.append(where[cached:])

    query = random(sum(new for _, new in rows), NUM_KV_HEADS * GROUP, HEAD_DIM)
    key, value = (
        torch.cat([history[i][cached:] for (cached, _), history in zip(rows, histories, strict=True)])
        for i in range(2)
    )
    step = create_backend("cpu", cache[:1], cache[1:]).begin(
        AttentionMetadata(
            slot_mapping=torch.cat(slots),
            num_decode=len(decodes),
            decode_groups=groups_of(decodes, blocks, num_groups),
            prefill_chunks=chunks_of(len(decodes), prefills, blocks),
        )
    )
    out = step(0, query, key, value).unflatten(1, (-1, HEAD_DIM))
    expected = [
        plain_attention(part, *history)
        for part, history in zip(query.split([new for _, new in rows]), histories, strict=True)
    ]
    torch.testing.assert_close(out, torch.cat(expected), rtol=1e-4, atol=1e-5)


def groups_of(
    decodes: list[int], blocks: tuple[torch.Tensor, ...], num_groups: int
) -> tuple[DecodeGroup, ...]:
    groups = []
    for index in range(num_groups):
        rows = list(range(index, len(decodes), num_groups))
        if not rows:
            continue
        width = max(len(blocks[row]) for row in rows)
        tables = torch.zeros(len(rows), width, dtype=torch.long)
        for line, row in enumerate(rows):
            tables[line, : len(blocks[row])] = blocks[row]
        lengths = torch.tensor([decodes[row] + 1 for row in rows])
        everything = num_groups == 1
        groups.append(DecodeGroup(None if everything else torch.tensor(rows), tables, lengths))
    return tuple(groups)


def chunks_of(
    num_decode: int, prefills: list[tuple[int, int]], blocks: tuple[torch.Tensor, ...]
) -> tuple[PrefillChunk, ...]:
    chunks = []
    offset = num_decode
    for (cached, new), table in zip(prefills, blocks[num_decode:], strict=True):
        chunks.append(PrefillChunk(offset, new, cached, table))
        offset += new
    return tuple(chunks)
