"""Devices: streams, events, staging, and the thread that feeds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioinfer.errors import BackendUnavailable

if TYPE_CHECKING:
    from aioinfer.config import EngineConfig
    from aioinfer.device.base import Device


def open_device(config: EngineConfig) -> Device:
    """Open `config.device`; called on the submission thread.

    Raises:
        BackendUnavailable: it cannot be used on this machine.
    """
    if config.device in ("auto", "cpu"):
        from aioinfer.device.cpu import CpuDevice

        return CpuDevice(config.torch_threads)
    raise BackendUnavailable(f"device {config.device!r} is not supported by this version; use --device cpu")
