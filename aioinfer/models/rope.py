"""Rotary frequencies and their scaling variants, by transformers' names and formulas
(`modeling_rope_utils`).

Computed once at load, in float32 on the CPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from aioinfer.models.interface import RopeConfig


def rope_tables(
    config: RopeConfig, rotary_dim: int, max_position: int, original: int
) -> tuple[Tensor, Tensor]:
    """Cosine and sine [max_position, rotary_dim], each half repeated.

    Args:
        config: base and scaling.
        rotary_dim: rotated dimensions of a head.
        max_position: positions to compute.
        original: context length that the model was made for, where `config` does not say it.
    """
    positions = torch.arange(max_position, dtype=torch.float32)
    original = config.original_max_position or original
    scale = 1.0
    if config.type == "dynamic":
        angles = positions[:, None] * _dynamic(config, rotary_dim, positions, original)
    else:
        frequencies, scale = _frequencies(config, rotary_dim, max_position, original)
        angles = torch.outer(positions, frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * scale, angles.sin() * scale


def _frequencies(
    config: RopeConfig, rotary_dim: int, max_position: int, original: int
) -> tuple[Tensor, float]:
    plain = _plain(config.theta, rotary_dim)
    if config.type == "linear":
        return plain / config.factor, 1.0
    if config.type == "llama3":
        return _llama3(config, plain, original), 1.0
    if config.type == "yarn":
        return _yarn(config, plain, rotary_dim, original)
    if config.type == "longrope":
        return _longrope(config, plain, max_position, original)
    return plain, 1.0


def _plain(theta: float, rotary_dim: int) -> Tensor:
    return theta ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def _dynamic(config: RopeConfig, rotary_dim: int, positions: Tensor, original: int) -> Tensor:
    """Frequencies [max_position, rotary_dim / 2]: NTK scaling by the length of the text so far.

    Position p takes the base for a text of p + 1 tokens, which is what decoding token by token gives; so a
    result depends neither on how a prompt was chunked nor on what else is in the batch.
    """
    lengths = torch.clamp(positions + 1, min=float(original))
    growth = config.factor * lengths / original - (config.factor - 1)
    base = config.theta * growth ** (rotary_dim / (rotary_dim - 2))
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    return base[:, None] ** -exponents


def _llama3(config: RopeConfig, plain: Tensor, original: int) -> Tensor:
    wavelengths = 2 * math.pi / plain
    smooth = (original / wavelengths - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * plain / config.factor + smooth * plain


def _yarn(config: RopeConfig, plain: Tensor, rotary_dim: int, original: int) -> tuple[Tensor, float]:
    """Peng et al., arXiv:2309.00071."""

    def dimension(rotations: float) -> float:
        return rotary_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    ramp = (torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    interpolated = ramp.clamp(0, 1)
    frequencies = plain / config.factor * interpolated + plain * (1 - interpolated)
    return frequencies, _yarn_scale(config)


def _yarn_scale(config: RopeConfig) -> float:
    if config.attention_factor is not None:
        return config.attention_factor

    def magnitude(mscale: float) -> float:
        return 1.0 if config.factor <= 1 else 0.1 * mscale * math.log(config.factor) + 1.0

    if config.mscale and config.mscale_all_dim:
        return magnitude(config.mscale) / magnitude(config.mscale_all_dim)
    return magnitude(1.0)


def _longrope(config: RopeConfig, plain: Tensor, max_position: int, original: int) -> tuple[Tensor, float]:
    """Ding et al., arXiv:2402.13753.  The long factors where the served context exceeds the original one:
    chosen once, so that cached keys stay valid as a text grows."""
    factors = config.long_factor if max_position > original else config.short_factor
    scale = config.attention_factor
    if scale is None:
        scale = 1.0 if config.factor <= 1 else math.sqrt(1 + math.log(config.factor) / math.log(original))
    return plain / torch.tensor(factors, dtype=torch.float32), scale
