"""Attention backends, one per kind of device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from aioinfer.models.attention.base import AttentionBackend


def create_backend(device_type: str, keys: Sequence[Tensor], values: Sequence[Tensor]) -> AttentionBackend:
    """The backend of a device over its caches: per layer, [num_blocks, block_size, K, D]."""
    from aioinfer.models.attention.sdpa import SdpaBackend

    return SdpaBackend(keys, values)
