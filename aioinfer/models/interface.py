"""What every model family agrees on: the shape of a configuration.

Owns the value objects between checkpoints (which fill them in) and families (which build modules from them).
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        type: scaling variant, by the names transformers gives them.
        factor: how much longer the context is than the original.
        original_max_position: context length before scaling; None means the model's own.
        attention_factor: multiplies cosine and sine (yarn, longrope); None derives it from the factor.
        low_freq_factor, high_freq_factor: llama3's band.
        beta_fast, beta_slow, mscale, mscale_all_dim, truncate: yarn's ramp and magnitude.
        short_factor, long_factor: longrope's, one per frequency; they divide it, as GGUF's `rope_freqs` do.
    """

    theta: float = 10_000.0
    type: RopeType = "default"
    factor: float = 1.0
    original_max_position: int | None = None
    attention_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer, by the names of Hugging Face's config.json.

    Attributes:
        architecture: Hugging Face's class name, the key of the registry (``LlamaForCausalLM``).
        head_dim: D; H = num_heads query heads share K = num_kv_heads key-value heads.
        rotary_dim: leading dimensions of a head that are rotated; at most head_dim.
        dtype: type the checkpoint was saved in (``float32``, ``bfloat16``, ``float16``).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    max_position: int
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"
