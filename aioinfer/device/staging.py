"""Host buffers from which steps are copied to the device, used in turn.

Called on the submission thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from aioinfer.device.base import Device


class StagingRing:
    """`num_buffers` host tensors [num_items].

    A buffer may be rewritten once the step that was copied from it is complete.  The step loop commits a step
    before it launches the `num_buffers`-th after it, so taking them in turn is enough.

    Args:
        num_buffers: one more than the steps in flight.
    """

    def __init__(self, device: Device, num_buffers: int, num_items: int, dtype: torch.dtype) -> None:
        self._buffers = [device.host_buffer(num_items, dtype) for _ in range(num_buffers)]
        self._next = 0

    def next(self) -> torch.Tensor:
        """The buffer whose turn it is."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        return buffer
