"""Layers that families share: normalisation, rotary embedding, the gated feed-forward block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from aioinfer.models.linear import Linear, empty_parameter
from aioinfer.models.rope import rope_tables

if TYPE_CHECKING:
    from torch import Tensor

    from aioinfer.models.interface import RopeConfig
    from aioinfer.models.linear import FactoryArgs


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, x [T, hidden] (Zhang & Sennrich, arXiv:1910.07467)."""

    def __init__(self, size: int, epsilon: float, factory: FactoryArgs) -> None:
        super().__init__()
        self.weight = empty_parameter(size, None, factory)
        self.epsilon = epsilon

    def forward(self, update: Tensor | None, residual: Tensor) -> Tensor:
        """Add the update to the residual in place, if there is one, and normalise the sum."""
        if update is not None:
            residual.add_(update)
        return F.rms_norm(residual, self.weight.shape, self.weight, self.epsilon)


class RotaryEmbedding(nn.Module):
    """Rotates queries and keys by their position (Su et al., arXiv:2104.09864), halves layout.

    Holds cosine and sine of every position up to `max_position`, in the model's type.
    """

    def __init__(
        self, config: RopeConfig, rotary_dim: int, max_position: int, original: int, factory: FactoryArgs
    ) -> None:
        super().__init__()
        self._rotary_dim = rotary_dim
        cos, sin = rope_tables(config, rotary_dim, max_position, original)
        sin[:, : rotary_dim // 2].neg_()  # so that rotating is one swap of the halves and two products
        self._cos = cos.to(factory.device, factory.dtype)
        self._signed_sin = sin.to(factory.device, factory.dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine [T, 1, rotary_dim] of positions [T]; once per step, for all layers."""
        return self._cos[positions].unsqueeze(1), self._signed_sin[positions].unsqueeze(1)

    def forward(self, x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
        """Rotate the leading dimensions of x [T, heads, D]."""
        if self._rotary_dim == x.shape[-1]:
            return _rotate(x, cos, signed_sin)
        turned, rest = x[..., : self._rotary_dim], x[..., self._rotary_dim :]
        return torch.cat((_rotate(turned, cos, signed_sin), rest), dim=-1)


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) (SwiGLU: Shazeer, arXiv:2002.05202), gate and up in one product."""

    def __init__(self, hidden: int, intermediate: int, *, bias: bool, factory: FactoryArgs) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden, 2 * intermediate, bias=bias, factory=factory)
        self.down_proj = Linear(intermediate, hidden, bias=bias, factory=factory)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        y: Tensor = self.down_proj(F.silu(gate).mul_(up))
        return y
