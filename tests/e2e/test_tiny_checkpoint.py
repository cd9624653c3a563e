"""A sharded safetensors checkpoint with random weights through the engine, against transformers."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch

from aioinfer import Engine
from aioinfer.errors import ConfigError
from tests.models.forward import assert_greedy_in_transformers, transformers_model
from tests.tiny_llama import VOCAB_SIZE, write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("prepack", ["on", "off"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_greedy_continuations_are_those_of_transformers(
    tiny_llama_dir: Path, prepack: str, depth: int
) -> None:
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, VOCAB_SIZE, (3 + 5 * i,), generator=generator).tolist() for i in range(16)]
    options: dict[str, Any] = {"prepack": prepack, "pipeline_depth": depth, "dtype": "float32"}
    async with Engine(tiny_llama_dir, **options) as engine:
        ours = await asyncio.gather(
            *(engine.generate(ids, temperature=0, max_tokens=64, ignore_eos=True) for ids in prompts)
        )
    model = transformers_model(tiny_llama_dir)
    for ids, completion in zip(prompts, ours, strict=True):
        assert len(completion.token_ids) == 64
        assert_greedy_in_transformers(model, ids, completion.token_ids)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
async def test_other_types_serve(tiny_llama_dir: Path, dtype: str) -> None:
    async with Engine(tiny_llama_dir, dtype=dtype, kv_cache_tokens=1024) as engine:
        assert engine.info.dtype == dtype
        completion = await engine.generate([5] * 300, max_tokens=10, ignore_eos=True)
        assert completion.usage.completion_tokens == 10


@pytest.mark.parametrize("num_tokens", [10**13, 10**25])
async def test_a_kv_cache_that_no_memory_holds_is_refused(tiny_llama_dir: Path, num_tokens: int) -> None:
    with pytest.raises(ConfigError, match="kv_cache_tokens: no memory for a KV cache"):
        async with Engine(tiny_llama_dir, kv_cache_tokens=num_tokens):
            raise AssertionError("opened")


async def test_closing_gives_the_memory_back(tmp_path: Path) -> None:
    """Twenty times open and closed, with weights and caches of 100 MB."""
    path = write_tiny_llama(tmp_path, hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    process = psutil.Process()
    after = []
    for _ in range(20):
        async with Engine(path, kv_cache_tokens=8192, dtype="float32") as engine:
            await asyncio.gather(*(engine.generate([5] * 100, max_tokens=4) for _ in range(8)))
            opened = process.memory_info().rss
        gc.collect()
        after.append(process.memory_info().rss)
        assert opened - after[-1] > 100 << 20
    assert after[-1] - after[4] < 20 << 20
    assert len(process.threads()) < 20
