"""The KV cache's memory: how many blocks fit, and their tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
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
        keys, values = _zeros(shape, device, dtype)
        return cls(keys.unbind(), values.unbind())


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    # numpy asks the system for zeroed pages, which take memory once they are used; torch writes the zeros.
    pages = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(pages).view(dtype).view(shape)


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
