"""config.json as transformers writes it, as people wrote it by hand, and as it should not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioinfer.errors import CorruptWeights, ModelError, UnsupportedModel
from aioinfer.models.interface import RopeConfig
from aioinfer.models.weights.config_json import parse_config

SOURCE = Path("model/config.json")
MINIMAL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 2.0,
    "high_freq_factor": 8.0,
    "original_max_position_embeddings": 64,
}


def parse(**changes: Any) -> Any:
    return parse_config(MINIMAL | changes, SOURCE, stored_dtype="float16")


def test_defaults_are_transformers() -> None:
    from transformers import LlamaConfig

    config, truth = parse(), LlamaConfig(**MINIMAL)
    assert config.num_kv_heads == truth.num_key_value_heads == 4
    assert config.head_dim == truth.head_dim == 16
    assert config.rms_norm_eps == truth.rms_norm_eps
    assert truth.rope_parameters == {"rope_type": "default", "rope_theta": config.rope.theta}
    assert config.tie_word_embeddings == truth.tie_word_embeddings
    assert config.attention_bias == truth.attention_bias
    assert config.mlp_bias == truth.mlp_bias
    assert config.rotary_dim == 16
    assert config.dtype == "float16"


def test_every_key() -> None:
    config = parse(
        num_key_value_heads=2,
        head_dim=32,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        torch_dtype="bfloat16",
        partial_rotary_factor=0.5,
    )
    assert (config.num_kv_heads, config.head_dim, config.rotary_dim) == (2, 32, 16)
    assert (config.rms_norm_eps, config.rope.theta, config.dtype) == (1e-5, 5e5, "bfloat16")
    assert config.tie_word_embeddings
    assert config.attention_bias
    assert config.mlp_bias


SCALINGS: dict[str, tuple[dict[str, Any], RopeConfig]] = {
    "default": ({"rope_type": "default"}, RopeConfig()),
    "linear": (
        {"rope_type": "linear", "factor": 2},
        RopeConfig(type="linear", factor=2.0, original_max_position=512),
    ),
    "the older key": (
        {"type": "dynamic", "factor": 4.0},
        RopeConfig(type="dynamic", factor=4.0, original_max_position=512),
    ),
    "llama3": (
        {"rope_type": "llama3", **LLAMA3},
        RopeConfig(
            type="llama3", factor=8.0, low_freq_factor=2.0, high_freq_factor=8.0, original_max_position=64
        ),
    ),
    "yarn": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16,
            "beta_slow": 2,
            "mscale": 0.7,
            "mscale_all_dim": 0.5,
            "attention_factor": 1.5,
            "truncate": False,
        },
        RopeConfig(
            type="yarn",
            factor=4.0,
            original_max_position=128,
            beta_fast=16.0,
            beta_slow=2.0,
            mscale=0.7,
            mscale_all_dim=0.5,
            attention_factor=1.5,
            truncate=False,
        ),
    ),
    "longrope": (
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [2] * 8,
            "original_max_position_embeddings": 128,
        },
        RopeConfig(
            type="longrope",
            factor=4.0,  # 512 / 128, as transformers derives it
            original_max_position=128,
            short_factor=(1.0,) * 8,
            long_factor=(2.0,) * 8,
        ),
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_rope_scaling_of_both_generations(name: str) -> None:
    scaling, expected = SCALINGS[name]
    assert parse(rope_scaling=scaling).rope == expected
    in_five = parse(rope_parameters=scaling | {"rope_theta": 77.0, "partial_rotary_factor": 1.0})
    assert in_five.rope.theta == 77.0
    assert parse(rope_scaling=scaling, rope_theta=77.0).rope == in_five.rope


def test_original_context_beside_the_scaling_wins() -> None:
    """As in transformers, which moves it there."""
    scaling = {"rope_type": "llama3", **LLAMA3}
    assert parse(rope_scaling=scaling, original_max_position_embeddings=32).rope.original_max_position == 32


def test_partial_rotation_inside_rope_parameters() -> None:
    config = parse(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.25})
    assert config.rotary_dim == 4


@pytest.mark.parametrize("key", [key for key in MINIMAL if key != "architectures"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(CorruptWeights, match=rf"model/config\.json has no {key}"):
        parse(**{key: None})


@pytest.mark.parametrize("wrong", ["64", 6.4, True, [64], {}, 0, -1, 2**31])
@pytest.mark.parametrize("key", ["hidden_size", "num_key_value_heads", "head_dim"])
def test_a_wrong_size_is_named(key: str, wrong: object) -> None:
    with pytest.raises(CorruptWeights, match=rf"{key} must be an integer from 1 to"):
        parse(**{key: wrong})


@pytest.mark.parametrize("wrong", ["1e-5", 0, -1.0, True, float("nan"), float("inf"), [1.0], 10**400])
@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta", "partial_rotary_factor"])
def test_a_wrong_number_is_named(key: str, wrong: object) -> None:
    with pytest.raises(CorruptWeights, match=f"{key} must be a number above 0"):
        parse(**{key: wrong})


REFUSED: dict[str, tuple[dict[str, Any], type[ModelError], str]] = {
    "architecture": (
        {"architectures": ["GPT2LMHeadModel"]},
        UnsupportedModel,
        "'GPT2LMHeadModel' is not supported; LlamaForCausalLM",
    ),
    "no architecture": ({"architectures": None}, CorruptWeights, "architectures must be a list with one"),
    "two architectures": ({"architectures": ["A", "B"]}, CorruptWeights, "architectures"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, UnsupportedModel, "quantization_config"),
    "activation": ({"hidden_act": "gelu"}, UnsupportedModel, "hidden_act 'gelu'.*silu"),
    "window": ({"sliding_window": 128}, UnsupportedModel, "sliding_window 128"),
    "dtype": ({"torch_dtype": "float8_e4m3fn"}, UnsupportedModel, "torch_dtype 'float8_e4m3fn'.*bfloat16"),
    "dtype's type": ({"dtype": 16}, CorruptWeights, "dtype must be a string"),
    "boolean": ({"mlp_bias": "no"}, CorruptWeights, "mlp_bias must be true or false"),
    "heads": ({"num_key_value_heads": 3}, CorruptWeights, "multiple"),
    "head size": ({"num_attention_heads": 3}, CorruptWeights, "divided into 3 heads"),
    "odd rotation": ({"partial_rotary_factor": 0.1}, CorruptWeights, "1 rotated dimensions of a head of 16"),
    "too much rotation": ({"partial_rotary_factor": 2}, CorruptWeights, "32 rotated"),
    "rope type": ({"rope_scaling": {"type": "mrope"}}, UnsupportedModel, "'mrope' is not supported; default"),
    "rope factor": ({"rope_scaling": {"type": "linear"}}, CorruptWeights, "rope_scaling has no factor"),
    "rope object": ({"rope_scaling": "linear"}, CorruptWeights, "rope_scaling must be an object"),
    "rope number": (
        {"rope_scaling": {"type": "yarn", "factor": "4"}},
        CorruptWeights,
        "rope_scaling: factor must be a number",
    ),
    "rope base": ({"rope_theta": 1}, CorruptWeights, "rotary base must be above 1, found 1.0"),
    "rope band": (
        {"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": 8.0}},
        CorruptWeights,
        "low_freq_factor 8.0 must be below high_freq_factor 8.0",
    ),
    "factors": (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}},
        CorruptWeights,
        "long_factor has 7 values for 8",
    ),
    "a factor": (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0, "x"]}},
        CorruptWeights,
        r"short_factor\[1\] must be a number",
    ),
    "factors' type": (
        {"rope_scaling": {"type": "longrope", "short_factor": 1.0}},
        CorruptWeights,
        "short_factor must be a list",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_why(name: str) -> None:
    changes, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        parse(**changes)


def test_a_window_that_is_off_or_no_window_at_all() -> None:
    assert parse(sliding_window=128, use_sliding_window=False) == parse()
    assert parse(sliding_window=512) == parse()


def test_mistral_is_llama_without_its_window() -> None:
    """Absent keys have Mistral's defaults, which are not Llama's."""
    mistral = {"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768}
    config = parse(**mistral, sliding_window=None, num_key_value_heads=4)
    assert config.architecture == "MistralForCausalLM"
    with pytest.raises(UnsupportedModel, match="sliding_window 4096"):
        parse(**mistral, num_key_value_heads=4)
    assert parse(**mistral, sliding_window=None, num_attention_heads=16).num_kv_heads == 8


short_text = st.text("ab1", max_size=3)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | short_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short_text, inner, max_size=3),
    max_leaves=5,
)
KEYS = (
    *MINIMAL,
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"),
    *("tie_word_embeddings", "attention_bias", "torch_dtype", "partial_rotary_factor", "sliding_window"),
)
ROPE_KEYS = ("rope_type", "type", "factor", "short_factor", "original_max_position_embeddings", "truncate")
rope_values = st.dictionaries(st.sampled_from(ROPE_KEYS), json_values | st.sampled_from(["yarn", "longrope"]))


@settings(deadline=None)  # the first example pays for imports
@given(changes=st.dictionaries(st.sampled_from(KEYS), json_values | rope_values))
def test_any_json_gives_a_config_or_a_typed_error(changes: dict[str, Any]) -> None:
    try:
        config = parse(**changes)
    except ModelError as error:
        assert "config.json" in str(error)
    else:
        assert config.num_heads % config.num_kv_heads == 0
