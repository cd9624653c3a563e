"""The Llama family against transformers: same weights, same logits."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.models.forward import PagedModel, transformers_model
from tests.tiny_llama import VOCAB_SIZE, write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = [int(i) for i in torch.randint(3, VOCAB_SIZE, (70,), generator=torch.Generator().manual_seed(1))]
CHUNKINGS = [[70], [69, 1], [1] * 70, [32, 32, 6], [5, 1, 1, 30, 1, 32], [64, 1, 1, 1, 1, 1, 1]]

LONG_FACTORS = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}
ROPE_VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "original_max_position_embeddings": 16,
        "mscale": 0.707,
        "mscale_all_dim": 1.5,
        "truncate": False,
    },
    "longrope-long": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 32,
        **LONG_FACTORS,
    },
    "longrope-short": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 1.0,
        "original_max_position_embeddings": 512,
        **LONG_FACTORS,
    },
}


def truth(path: Path, ids: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = transformers_model(path, dtype)(torch.tensor([ids])).logits[0].float()
    return logits


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunks", CHUNKINGS, ids=str)
def test_every_way_to_cut_a_prompt_gives_the_same_logits(
    tiny_llama_dir: Path, chunks: list[int], packed: bool
) -> None:
    logits = PagedModel(tiny_llama_dir, packed=packed).logits(PROMPT, chunks)
    torch.testing.assert_close(logits, truth(tiny_llama_dir, PROMPT), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", ROPE_VARIANTS)
def test_rotary_scaling(tmp_path: Path, variant: str) -> None:
    path = write_tiny_llama(tmp_path, rope_parameters=ROPE_VARIANTS[variant])
    logits = PagedModel(path).logits(PROMPT, [40, 1, 29])
    torch.testing.assert_close(logits, truth(path, PROMPT), rtol=1e-4, atol=1e-4)


def test_dynamic_rotary_scaling_is_what_decoding_token_by_token_gives(tmp_path: Path) -> None:
    from transformers import DynamicCache

    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    path = write_tiny_llama(tmp_path, rope_parameters=rope, max_position_embeddings=48)
    model = transformers_model(path)
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        expected = [
            model(torch.tensor([[token]]), cache=cache, use_cache=True).logits[0, -1] for token in PROMPT
        ]
    ours = PagedModel(path)
    for chunks in ([70], [1] * 70, [30, 1, 39]):
        torch.testing.assert_close(ours.logits(PROMPT, chunks), torch.stack(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 32},
        {"rms_norm_eps": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("packed", [False, True])
def test_members_of_the_family(tmp_path: Path, config: dict[str, Any], packed: bool) -> None:
    path = write_tiny_llama(tmp_path, **config)
    logits = PagedModel(path, packed=packed).logits(PROMPT, [60, 10])
    torch.testing.assert_close(logits, truth(path, PROMPT), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_to_float32_as_transformers_is(
    tiny_llama_dir: Path, dtype: torch.dtype, packed: bool
) -> None:
    exact = truth(tiny_llama_dir, PROMPT)
    theirs = (truth(tiny_llama_dir, PROMPT, dtype) - exact).abs()
    ours = (PagedModel(tiny_llama_dir, dtype, packed=packed).logits(PROMPT, [40, 1, 29]) - exact).abs()
    assert ours.mean() <= 1.5 * theirs.mean()
    assert ours.max() <= 2 * theirs.max()


def test_the_default_model(default_model_path: Path, default_model_in_transformers: Any) -> None:
    model = PagedModel(default_model_path, packed=True)
    for ids in random_prompts(1, 17, 64, 200):
        with torch.inference_mode():
            expected = default_model_in_transformers(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(model.logits(ids), expected, rtol=1e-3, atol=2e-3)


def test_the_default_model_in_bfloat16(default_model_path: Path, default_model_in_transformers: Any) -> None:
    model = PagedModel(default_model_path, torch.bfloat16, packed=True)
    half = copy.deepcopy(default_model_in_transformers).to(torch.bfloat16)
    for ids in random_prompts(1, 24):
        with torch.inference_mode():
            exact = default_model_in_transformers(torch.tensor([ids])).logits[0]
            theirs = (half(torch.tensor([ids])).logits[0].float() - exact).abs()
        assert (model.logits(ids) - exact).abs().mean() <= 1.5 * theirs.mean()


def random_prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, 49152, (n,), generator=generator).tolist() for n in lengths]
