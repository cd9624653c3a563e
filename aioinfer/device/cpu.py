"""The CPU as a device: a FIFO stream whose work the submission thread runs itself, so an event is complete
when it is recorded.

Everything here runs on the submission thread.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from aioinfer.device.base import Device, MemoryInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CpuDevice(Device):
    """Args:
    num_threads: threads for one operator; None leaves torch's own choice.
    """

    name = "cpu"

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = num_threads

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @contextmanager
    def scope(self) -> Iterator[None]:
        before = torch.get_num_threads()
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        try:
            with torch.inference_mode():
                yield
        finally:
            if self._num_threads is not None:
                torch.set_num_threads(before)

    def memory(self) -> MemoryInfo:
        page = os.sysconf("SC_PAGE_SIZE")
        return MemoryInfo(_available_bytes(), os.sysconf("SC_PHYS_PAGES") * page)

    def preferred_dtype(self, checkpoint_dtype: str) -> torch.dtype:
        """bfloat16 where the CPU multiplies it in hardware and the checkpoint is not float32; else float32.

        Measured (2 cores, AVX-512 without bfloat16): emulated bfloat16 is 3 times slower than float32 at 32
        rows, and no faster at one.
        """
        if checkpoint_dtype != "float32" and _multiplies_bfloat16():
            return torch.bfloat16
        return torch.float32

    def host_buffer(self, num_items: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(num_items, dtype=dtype)

    def record(self) -> None:
        return None

    def when_done(self, event: None, callback: Callable[[], None]) -> None:
        callback()

    def close(self) -> None:
        return None


def _multiplies_bfloat16() -> bool:
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def _available_bytes() -> int:
    """MemAvailable of Linux, which counts caches that can be dropped; else what is free."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
