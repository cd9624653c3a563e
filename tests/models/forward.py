"""Runs a model over a paged cache without scheduler or runner, for comparison with transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aioinfer.models.attention import create_backend
from aioinfer.models.attention.base import AttentionMetadata, DecodeGroup, PrefillChunk
from aioinfer.models.batch import ForwardBatch
from aioinfer.models.linear import FactoryArgs
from aioinfer.models.loader import load_model, prepack
from aioinfer.models.weights.checkpoint import open_checkpoint
from aioinfer.runner.kv import KVCache

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor


class PagedModel:
    """One sequence at a time, its blocks scattered over the cache."""

    def __init__(
        self, path: Path, dtype: torch.dtype = torch.float32, *, packed: bool = False, max_position: int = 512
    ) -> None:
        cpu = torch.device("cpu")
        with open_checkpoint(path) as checkpoint:
            self.config = checkpoint.config
            self.model = load_model(checkpoint, max_position=max_position, factory=FactoryArgs(cpu, dtype))
        if packed:
            prepack(self.model, "on", free_bytes=0)
        self.block_size = 4
        num_blocks = max_position // self.block_size + 1
        cache = KVCache.allocate(self.config, num_blocks, self.block_size, cpu, dtype)
        self.attention = create_backend("cpu", cache.keys, cache.values)
        self.table = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(0)) + 1

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], lengths: Sequence[int] = ()) -> Tensor:
        """Logits [len(ids), V] after each token, computed in chunks of `lengths`; chunks of 1 decode."""
        chunks = []
        start = 0
        for length in lengths or [len(ids)]:
            chunks.append(self._chunk(ids[start : start + length], start))
            start += length
        assert start == len(ids)
        return torch.cat(chunks)

    def _chunk(self, ids: Sequence[int], start: int) -> Tensor:
        positions = torch.arange(start, start + len(ids))
        slots = self.table[positions // self.block_size] * self.block_size + positions % self.block_size
        table = self.table[: -(-(start + len(ids)) // self.block_size)]
        decodes = len(ids) == 1 and start > 0
        metadata = AttentionMetadata(
            slot_mapping=slots,
            num_decode=int(decodes),
            decode_groups=(DecodeGroup(None, table[None], positions + 1),) if decodes else (),
            prefill_chunks=() if decodes else (PrefillChunk(0, len(ids), start, table),),
        )
        batch = ForwardBatch(torch.tensor(ids), positions, None, self.attention.begin(metadata))
        logits: Tensor = self.model(batch)
        return logits


def transformers_model(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The truth: the same weights in transformers."""
    from transformers import AutoModelForCausalLM, GgufConfig

    if path.suffix != ".gguf":
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=dtype,
        quantization_config=GgufConfig(dequantize=True),
    ).eval()


@torch.inference_mode()
def assert_greedy_in_transformers(model: Any, prompt: Sequence[int], continuation: Sequence[int]) -> None:
    """Each token of the continuation is the most likely one after those before it."""
    ids = [*prompt, *continuation]
    logits = model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(dim=-1).tolist() == list(continuation)
