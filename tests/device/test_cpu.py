"""The CPU as a device."""

from __future__ import annotations

import pytest
import torch

from aioinfer.config import EngineConfig
from aioinfer.device import cpu, open_device
from aioinfer.device.cpu import CpuDevice
from aioinfer.device.staging import StagingRing
from aioinfer.errors import BackendUnavailable


def test_the_scope_sets_threads_and_inference_mode_and_puts_them_back() -> None:
    before = torch.get_num_threads()
    with CpuDevice(num_threads=before + 1).scope():
        assert torch.get_num_threads() == before + 1
        assert torch.is_inference_mode_enabled()
    assert torch.get_num_threads() == before
    assert not torch.is_inference_mode_enabled()


def test_memory_is_what_the_machine_has() -> None:
    memory = CpuDevice().memory()
    assert 0 < memory.free_bytes < memory.total_bytes


@pytest.mark.parametrize(
    ("in_hardware", "checkpoint", "dtype"),
    [
        (True, "bfloat16", torch.bfloat16),
        (True, "float16", torch.bfloat16),
        (True, "float32", torch.float32),
        (False, "bfloat16", torch.float32),
    ],
)
def test_the_fastest_type_depends_on_the_machine(
    monkeypatch: pytest.MonkeyPatch, in_hardware: bool, checkpoint: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(cpu, "_multiplies_bfloat16", lambda: in_hardware)
    assert CpuDevice().preferred_dtype(checkpoint) is dtype


def test_events_are_complete_when_they_are_recorded() -> None:
    device = CpuDevice()
    done: list[int] = []
    event: None = device.record()  # type: ignore[func-returns-value]
    device.when_done(event, lambda: done.append(1))
    assert done == [1]


def test_staging_buffers_take_turns() -> None:
    ring = StagingRing(CpuDevice(), 3, 8, torch.int64)
    buffers = [ring.next() for _ in range(6)]
    addresses = [buffer.data_ptr() for buffer in buffers]
    assert len(set(addresses)) == 3
    assert addresses[:3] == addresses[3:]
    assert all(buffer.shape == (8,) for buffer in buffers)


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "npu:0"])
def test_devices_to_come_are_refused_in_words(name: str) -> None:
    with pytest.raises(BackendUnavailable, match=f"device '{name}' is not supported by this version"):
        open_device(EngineConfig(device=name))


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_the_cpu_is_there(name: str) -> None:
    assert open_device(EngineConfig(device=name)).name == "cpu"
