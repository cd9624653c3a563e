"""What the metadata of a .gguf file says, in Hugging Face's terms: configuration and text assets.

Source of the keys: llama.cpp's ``gguf-py`` constants, and for their defaults its ``llama-model.cpp``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from aioinfer.errors import CorruptWeights, UnsupportedModel
from aioinfer.models.interface import ModelConfig, RopeConfig
from aioinfer.models.weights.checkpoint import check_shape
from aioinfer.models.weights.config_json import check_config, derived_head_dim
from aioinfer.models.weights.fields import Fields
from aioinfer.types import TextAssets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ROPE_FACTORS = "rope_freqs.weight"
TOKENIZER_PREFIX = "tokenizer."
EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
SPECIAL_TOKEN_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def read_config(
    metadata: Mapping[str, Any],
    *,
    architecture: str,
    shapes: Mapping[str, tuple[int, ...]],
    rope_factors: tuple[float, ...],
    dtype: str,
    path: Path,
) -> ModelConfig:
    """Build a `ModelConfig` from metadata, and from what only the tensors say.

    Args:
        metadata: of the file.
        architecture: Hugging Face's class name.
        shapes: of the tensors, by GGUF's names.
        rope_factors: contents of the tensor `ROPE_FACTORS`; empty if there is none.
        dtype: of most of the weights.
        path: of the file, for messages.

    Raises:
        CorruptWeights: a key is missing, has the wrong type, or contradicts another or a tensor.
        UnsupportedModel: it asks for something that changes the result and is not implemented.
    """
    prefix = f"{metadata['general.architecture']}."
    fields = Fields({key.removeprefix(prefix): value for key, value in metadata.items()}, path)
    _refuse_unsupported(fields)
    if "token_embd.weight" not in shapes:
        raise CorruptWeights(f"{path} has no tensor token_embd.weight")
    embedding = shapes["token_embd.weight"]
    hidden_size = fields.required_size("embedding_length")
    num_heads = fields.required_size("attention.head_count")
    head_dim = fields.size("attention.key_length") or derived_head_dim(hidden_size, num_heads, path)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=embedding[0],
        hidden_size=hidden_size,
        intermediate_size=fields.required_size("feed_forward_length"),
        num_layers=fields.required_size("block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.size("attention.head_count_kv") or num_heads,
        head_dim=head_dim,
        rotary_dim=fields.size("rope.dimension_count") or head_dim,
        max_position=fields.required_size("context_length"),
        rms_norm_eps=fields.required_positive("attention.layer_norm_rms_epsilon"),
        rope=_rope(fields, rope_factors),
        tie_word_embeddings="output.weight" not in shapes,
        attention_bias="blk.0.attn_q.bias" in shapes,
        mlp_bias="blk.0.ffn_up.bias" in shapes,
        dtype=dtype,
    )
    check_shape("token_embd.weight", (config.vocab_size, hidden_size), embedding)
    check_config(config, path)
    return config


def read_text_assets(metadata: Mapping[str, Any], vocab_size: int, path: Path) -> TextAssets:
    """Collect the text assets.

    Args:
        metadata: of the file.
        vocab_size: number of embeddings.
        path: of the file, for messages.

    Raises:
        CorruptWeights: a key has the wrong type, or a token id is not in the vocabulary.
    """
    fields = Fields({key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}, path)
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise CorruptWeights(f"{path}: tokenizer.ggml.tokens must be a list of strings")
    if len(tokens) > vocab_size:
        raise CorruptWeights(f"{path} has {len(tokens)} tokens, but embeddings for {vocab_size}")
    special: dict[str, str] = {}
    for name, key in SPECIAL_TOKEN_KEYS.items():
        for token_id in fields.token_ids(key):
            if token_id >= len(tokens):
                raise CorruptWeights(f"{path}: {key} is {token_id}, but there are {len(tokens)} tokens")
            special[name] = tokens[token_id]
    eos_token_ids = tuple(token_id for key in EOS_KEYS for token_id in fields.token_ids(key))
    return TextAssets(
        gguf_metadata={key: value for key, value in metadata.items() if key.startswith(TOKENIZER_PREFIX)},
        chat_template=fields.string("tokenizer.chat_template"),
        special_tokens=special,
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
        add_bos=fields.boolean("add_bos_token", False) if "add_bos_token" in fields else None,
    )


def _refuse_unsupported(fields: Fields) -> None:
    if fields.values.get("expert_count"):
        raise UnsupportedModel(f"{fields.source}: mixtures of experts (expert_count) are not supported")
    key_length, value_length = fields.size("attention.key_length"), fields.size("attention.value_length")
    if key_length != value_length:
        raise UnsupportedModel(
            f"{fields.source}: keys of {key_length} and values of {value_length} dimensions are not "
            "supported; they must have the same size"
        )
    window = fields.size("attention.sliding_window")
    if window and window < fields.required_size("context_length"):
        raise UnsupportedModel(f"{fields.source}: sliding-window attention is not supported")


def _rope(fields: Fields, factors: tuple[float, ...]) -> RopeConfig:
    theta = fields.positive("rope.freq_base") or RopeConfig().theta
    if factors:
        return _rope_by_factors(fields, theta, factors)
    # Files older than rope.scaling.type have linear scaling, and the oldest its factor under another name.
    factor = fields.positive("rope.scaling.factor") or fields.positive("rope.scale_linear") or 1.0
    match fields.string("rope.scaling.type") or "linear":
        case "none":
            return RopeConfig(theta=theta)
        case "linear" if factor == 1:
            return RopeConfig(theta=theta)
        case "linear":
            return RopeConfig(theta=theta, type="linear", factor=factor)
        case "yarn":
            return _yarn(fields, theta, factor)
        case other:
            raise UnsupportedModel(
                f"{fields.source}: rotary scaling {other!r} is not supported; none, linear and yarn are"
            )


def _rope_by_factors(fields: Fields, theta: float, factors: tuple[float, ...]) -> RopeConfig:
    """llama3's scaling, which the conversion has worked out: each frequency is divided by its factor.

    longrope without its attention factor is the same formula.
    """
    Fields({ROPE_FACTORS: list(factors)}, fields.source).positives(ROPE_FACTORS)
    return RopeConfig(
        theta=theta, type="longrope", attention_factor=1.0, short_factor=factors, long_factor=factors
    )


def _yarn(fields: Fields, theta: float, factor: float) -> RopeConfig:
    for key in ("rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier"):
        if key in fields:
            raise UnsupportedModel(f"{fields.source}: {key} is not supported")
    defaults = RopeConfig()
    # ggml multiplies yarn's own magnitude, 0.1 ln(factor) + 1, with this one.
    magnitude = fields.positive("rope.scaling.attn_factor") or fields.positive(
        "rope.scaling.yarn_attn_factor"
    )
    return RopeConfig(
        theta=theta,
        type="yarn",
        factor=factor,
        original_max_position=fields.size("rope.scaling.original_context_length"),
        attention_factor=magnitude and magnitude * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0),
        beta_fast=fields.positive("rope.scaling.yarn_beta_fast") or defaults.beta_fast,
        beta_slow=fields.positive("rope.scaling.yarn_beta_slow") or defaults.beta_slow,
    )
