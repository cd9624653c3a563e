"""The verbs the engine asks of a device.

A device is used by one submission thread only (`aioinfer.device.thread`), which enters `scope` for its whole
life.  Nothing here may wait for work that has been queued: completion is an event that calls back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of a device, in bytes: what is free, and what there is in all."""

    free_bytes: int
    total_bytes: int


class Device(ABC):
    """One accelerator, or the CPU.

    Attributes:
        name: as the user writes it: ``cpu``, ``cuda:0``, ``npu:0``.
    """

    name: str

    @property
    @abstractmethod
    def torch_device(self) -> torch.device:
        """Where tensors live."""

    @abstractmethod
    def scope(self) -> AbstractContextManager[None]:
        """What the submission thread enters: device and stream selection, inference mode."""

    @abstractmethod
    def memory(self) -> MemoryInfo:
        """Memory now.  Asks the driver or the kernel: not for the loop thread."""

    @abstractmethod
    def preferred_dtype(self, checkpoint_dtype: str) -> torch.dtype:
        """The type in which this device computes fastest, given what the checkpoint was saved in."""

    @abstractmethod
    def host_buffer(self, num_items: int, dtype: torch.dtype) -> torch.Tensor:
        """A [num_items] tensor in host memory from which copies to the device can run asynchronously."""

    @abstractmethod
    def record(self) -> Any:
        """An event after everything queued so far."""

    @abstractmethod
    def when_done(self, event: Any, callback: Callable[[], None]) -> None:
        """Call `callback` once, from any thread, when the event has completed.  Does not wait."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; called last, on the submission thread."""
