"""The KV cache's memory: how many blocks fit, and their tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from aioinfer.models.interface import ModelConfig


@dataclass(frozen=True, slots=True)
class KVCache:
    """Per layer, keys and values [num_blocks, block_size, K, D]."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def allocate(
        cls, config: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
    ) -> KVCache:
        """Zeroed: gathered padding takes part in a masked product, where a NaN would not stay masked."""
        shape = (2, config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        keys, values = torch.zeros(shape, device=device, dtype=dtype)
        return cls(keys.unbind(), values.unbind())


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
