"""A linear layer with several weight formats: the one module that multiplies by a weight.

Loaded dense; `prepare` then picks the kernel.  Called on the submission thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

# Below this many rows a float32 product is bound by reading the weight and the dense kernel is the faster
# (measured, 2 cores with AVX-512: 0.7 times the packed one's time at 1 and 2 rows, 1.6 times it at 4).
MIN_PACKED_ROWS_FLOAT32 = 3


@dataclass(frozen=True, slots=True)
class FactoryArgs:
    """Where and in which type a module's parameters are made."""

    device: torch.device
    dtype: torch.dtype


class Linear(nn.Module):
    """y = x Wᵀ + b, with x [T, in], W [out, in], y [T, out].

    Args:
        weight: to be shared with another module (tied embeddings) instead of a new one.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        factory: FactoryArgs,
        weight: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight if weight is not None else empty_parameter(out_features, in_features, factory)
        self.bias = empty_parameter(out_features, None, factory) if bias else None
        self._packed: Tensor | None = None
        self._min_packed_rows = 0

    def prepare(self) -> None:
        """Pack the weight for oneDNN, which is up to twice as fast in batches.

        float32 keeps the dense weight beside it; 16-bit types are packed once for all sizes.
        """
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, None)
        if self.weight.dtype == torch.float32:
            self._min_packed_rows = MIN_PACKED_ROWS_FLOAT32

    def drop_dense(self) -> None:
        """Free the dense weight; only for a packed 16-bit weight that no other module shares."""
        if self._packed is not None and self._min_packed_rows == 0:
            self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is None or x.shape[0] < self._min_packed_rows:
            return F.linear(x, self.weight, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return y


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies packed weights of this type on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.float32:
        return True
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def empty_parameter(rows: int, columns: int | None, factory: FactoryArgs) -> nn.Parameter:
    """A [rows, columns] or [rows] parameter to be filled by the loader."""
    shape = (rows,) if columns is None else (rows, columns)
    return nn.Parameter(torch.empty(shape, device=factory.device, dtype=factory.dtype), requires_grad=False)
