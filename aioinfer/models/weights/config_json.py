"""config.json: from Hugging Face's keys to a `ModelConfig`.

Source of the keys and their defaults: transformers' ``LlamaConfig`` and ``modeling_rope_utils`` (4.x writes
`rope_theta` and `rope_scaling`, 5.x `rope_parameters`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from aioinfer.errors import CorruptWeights, UnsupportedModel
from aioinfer.models.interface import ModelConfig, RopeConfig, RopeType
from aioinfer.models.registry import ARCHITECTURES
from aioinfer.models.weights.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DTYPES = ("float32", "bfloat16", "float16")
# transformers' defaults for absent keys, where a family has others than Llama.
FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
}
# The scaling variants that have no meaning without their factor.
SCALED_ROPE_TYPES = ("linear", "dynamic", "llama3", "yarn")


def parse_config(values: Mapping[str, Any], source: Path, *, stored_dtype: str) -> ModelConfig:
    """Build a `ModelConfig` from the contents of a config.json.

    Args:
        values: the JSON object.
        source: its path, for messages.
        stored_dtype: the weights' own dtype, for a file that does not name one.

    Raises:
        CorruptWeights: a key is missing, has the wrong type, or contradicts another; the message names it.
        UnsupportedModel: it asks for something that changes the result and is not implemented.
    """
    architecture = _architecture(values, source)
    fields = Fields(FAMILY_DEFAULTS.get(architecture, {}) | dict(values), source)
    _refuse_unsupported(fields)
    hidden_size = fields.required_size("hidden_size")
    num_heads = fields.required_size("num_attention_heads")
    head_dim = fields.size("head_dim") or derived_head_dim(hidden_size, num_heads, source)
    rope, rotary_share = _rope(fields)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.required_size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.required_size("intermediate_size"),
        num_layers=fields.required_size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        rotary_dim=int(head_dim * rotary_share),
        max_position=fields.required_size("max_position_embeddings"),
        rms_norm_eps=fields.positive("rms_norm_eps") or 1e-6,
        rope=rope,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        attention_bias=fields.boolean("attention_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
        dtype=_dtype(fields) or stored_dtype,
    )
    check_config(config, source)
    return config


def check_config(config: ModelConfig, source: Path) -> None:
    """Check what must hold between the values of a configuration.

    Raises:
        CorruptWeights: it does not hold.
    """
    if config.num_heads % config.num_kv_heads:
        raise CorruptWeights(
            f"{source}: {config.num_heads} query heads cannot share {config.num_kv_heads} key-value heads; "
            "the one must be a multiple of the other"
        )
    if config.rotary_dim % 2 or not 2 <= config.rotary_dim <= config.head_dim:
        raise CorruptWeights(
            f"{source}: {config.rotary_dim} rotated dimensions of a head of {config.head_dim}; "
            "it must be an even number from 2 to the head's size"
        )
    if config.rope.theta <= 1:
        raise CorruptWeights(f"{source}: the rotary base must be above 1, found {config.rope.theta}")
    if config.rope.low_freq_factor >= config.rope.high_freq_factor:
        raise CorruptWeights(
            f"{source}: low_freq_factor {config.rope.low_freq_factor} must be below high_freq_factor "
            f"{config.rope.high_freq_factor}"
        )
    for name in ("short_factor", "long_factor"):
        num_factors = len(getattr(config.rope, name))
        if num_factors != (config.rotary_dim // 2 if config.rope.type == "longrope" else 0):
            raise CorruptWeights(
                f"{source}: {name} has {num_factors} values for {config.rotary_dim // 2} rotary frequencies"
            )


def derived_head_dim(hidden_size: int, num_heads: int, source: Path) -> int:
    """The head size of a model that does not state one.

    Raises:
        CorruptWeights: the heads do not divide the hidden size.
    """
    if hidden_size % num_heads:
        raise CorruptWeights(
            f"{source}: a hidden size of {hidden_size} cannot be divided into {num_heads} heads"
        )
    return hidden_size // num_heads


def _architecture(values: Mapping[str, Any], source: Path) -> str:
    match values.get("architectures"):
        case [str(architecture)] if architecture in ARCHITECTURES:
            return architecture
        case [str(architecture)]:
            raise UnsupportedModel(
                f"{source}: architecture {architecture!r} is not supported; {', '.join(ARCHITECTURES)} are"
            )
        case found:
            raise CorruptWeights(
                f"{source}: architectures must be a list with one class name, found {found!r}"
            )


def _refuse_unsupported(fields: Fields) -> None:
    if "quantization_config" in fields:
        raise UnsupportedModel(
            f"{fields.source}: quantization_config is not supported; safetensors weights must be "
            f"{', '.join(DTYPES)}, quantised weights come as .gguf files"
        )
    activation = fields.string("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"{fields.source}: hidden_act {activation!r} is not supported; silu is")
    window = fields.size("sliding_window")
    max_position = fields.size("max_position_embeddings") or 0
    if window and fields.boolean("use_sliding_window", True) and window < max_position:
        raise UnsupportedModel(
            f"{fields.source}: sliding_window {window} is not supported; full attention (null) is"
        )


def _dtype(fields: Fields) -> str | None:
    key = "dtype" if "dtype" in fields else "torch_dtype"
    name = fields.string(key)
    if name is not None and name not in DTYPES:
        raise UnsupportedModel(f"{fields.source}: {key} {name!r} is not supported; {', '.join(DTYPES)} are")
    return name


def _rope(fields: Fields) -> tuple[RopeConfig, float]:
    """The rotary embedding, and the share of a head that it rotates."""
    rope = fields.section("rope_parameters") or fields.section("rope_scaling")
    theta = (rope and rope.positive("rope_theta")) or fields.positive("rope_theta") or RopeConfig().theta
    share = (rope and rope.positive("partial_rotary_factor")) or fields.positive("partial_rotary_factor")
    if rope is None:
        return RopeConfig(theta=theta), share or 1.0
    return replace(_scaling(rope, fields), theta=theta), share or 1.0


def _scaling(rope: Fields, fields: Fields) -> RopeConfig:
    max_position = fields.required_size("max_position_embeddings")
    rope_type = _rope_type(rope)
    original = (
        fields.size("original_max_position_embeddings")
        or rope.size("original_max_position_embeddings")
        or max_position
    )
    if rope_type == "default":
        return RopeConfig()
    if rope_type in SCALED_ROPE_TYPES:
        rope.required_positive("factor")
    defaults = RopeConfig(type=rope_type)
    return RopeConfig(
        type=rope_type,
        factor=rope.positive("factor") or max_position / original,
        original_max_position=original,
        attention_factor=rope.positive("attention_factor"),
        low_freq_factor=rope.positive("low_freq_factor") or defaults.low_freq_factor,
        high_freq_factor=rope.positive("high_freq_factor") or defaults.high_freq_factor,
        beta_fast=rope.positive("beta_fast") or defaults.beta_fast,
        beta_slow=rope.positive("beta_slow") or defaults.beta_slow,
        mscale=rope.positive("mscale"),
        mscale_all_dim=rope.positive("mscale_all_dim"),
        truncate=rope.boolean("truncate", defaults.truncate),
        short_factor=rope.positives("short_factor"),
        long_factor=rope.positives("long_factor"),
    )


def _rope_type(rope: Fields) -> RopeType:
    found = rope.string("rope_type") or rope.string("type") or "default"
    for known in get_args(RopeType):
        if found == known:
            return known  # type: ignore[no-any-return]
    raise UnsupportedModel(
        f"{rope.source}: rotary scaling {found!r} is not supported; {', '.join(get_args(RopeType))} are"
    )
