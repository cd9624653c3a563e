"""The default model end to end through the engine, against transformers and against itself."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from aioinfer import Engine
from aioinfer.types import FinishReason
from tests.models.forward import assert_greedy_in_transformers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aioinfer import Completion

pytestmark = pytest.mark.timeout(400)  # transformers takes its time to load the model

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "The three laws of robotics are",
    "Water boils at a temperature of",
    "Dear Sir or Madam,",
    "In a shocking finding, scientists discovered",
    "To bake a loaf of bread you need flour, water,",
    "SELECT name, age FROM users WHERE",
    "The sky is blue because",
    "My favourite season is autumn, for the leaves",
    "A haiku about rain:",
    "The quick brown fox jumps over",
    "import numpy as np",
    "Q: What is the largest planet? A:",
    "She opened the letter, and her hands began to",
]


@pytest.fixture(scope="module")
def prompt_ids(default_model_path: Path) -> list[list[int]]:
    from aioinfer.models.weights.checkpoint import open_checkpoint
    from aioinfer.text.tokenizer import load_tokenizer

    with open_checkpoint(default_model_path) as checkpoint:
        return load_tokenizer(checkpoint.text).encode_batch(PROMPTS)


@pytest.fixture
async def engine(default_model_path: Path) -> AsyncIterator[Engine]:
    async with Engine(default_model_path, dtype="float32", kv_cache_tokens=16_384) as engine:
        yield engine


async def test_greedy_continuations_are_those_of_transformers(
    engine: Engine, prompt_ids: list[list[int]], default_model_in_transformers: Any
) -> None:
    ours = await asyncio.gather(
        *(engine.generate(ids, temperature=0, max_tokens=64, ignore_eos=True) for ids in prompt_ids)
    )
    for ids, completion in zip(prompt_ids, ours, strict=True):
        assert len(completion.token_ids) == 64
        assert_greedy_in_transformers(default_model_in_transformers, ids, completion.token_ids)


async def test_it_chats(engine: Engine) -> None:
    completion = await engine.chat(
        [{"role": "user", "content": "What is the capital of France?"}], temperature=0, max_tokens=32
    )
    assert "Paris" in completion.text
    assert completion.finish_reason is FinishReason.STOP
    assert "<|im_end|>" not in completion.text


async def test_a_seed_gives_the_same_text_in_any_company(engine: Engine) -> None:
    """BUGS B46."""

    def seeded() -> Any:
        return engine.generate(PROMPTS[1], seed=42, temperature=0.8, top_p=0.95, max_tokens=24)

    async def beside(**params: Any) -> Completion:
        answer, _ = await asyncio.gather(
            seeded(), engine.generate(PROMPTS[2], max_tokens=30, ignore_eos=True, **params)
        )
        return answer  # type: ignore[no-any-return]

    alone = await seeded()
    assert (await beside(temperature=1.0)).text == alone.text
    assert (await beside(top_k=1)).text == alone.text
    assert (await beside(seed=42, temperature=0.8)).text == alone.text
    other = await engine.generate(PROMPTS[1], seed=43, temperature=0.8, top_p=0.95, max_tokens=24)
    assert other.text != alone.text


async def test_company_and_preemption_change_nothing(default_model_path: Path) -> None:
    """32 requests of mixed lengths, arriving at random, in a cache that holds a few of them."""
    generator = random.Random(0)
    requests = [
        (
            [generator.randrange(1000, 40_000) for _ in range(generator.choice((2, 5, 9, 60)))],
            {"max_tokens": generator.choice((1, 8, 24)), "ignore_eos": True}
            | ({"temperature": 0} if i % 2 else {"temperature": 0.9, "seed": i, "top_k": 40}),
        )
        for i in range(32)
    ]
    options: dict[str, Any] = {"dtype": "float32", "block_size": 4, "token_budget": 48, "max_num_seqs": 16}
    async with Engine(default_model_path, kv_cache_tokens=2048, **options) as engine:
        alone = [await engine.generate(ids, **params) for ids, params in requests]
    for depth in (1, 2):
        async with Engine(default_model_path, kv_cache_tokens=100, pipeline_depth=depth, **options) as engine:

            async def arrive(ids: list[int], params: dict[str, Any], turns: int) -> Completion:
                for _ in range(turns):
                    await asyncio.sleep(0)
                return await engine.generate(ids, **params)

            together = await asyncio.gather(
                *(arrive(ids, params, generator.randrange(200)) for ids, params in requests)
            )
            assert num_preemptions(engine) > 0
        for got, expected in zip(together, alone, strict=True):
            assert got.token_ids == expected.token_ids
            assert got.text == expected.text


def num_preemptions(engine: Engine) -> float:
    body, _ = engine.metrics.render()
    line = next(line for line in body.splitlines() if b"num_preemptions_total{" in line)
    return float(line.split()[-1])
