"""`aioinfer doctor` names versions, devices and what is missing."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

import torch

import aioinfer
from aioinfer.cli import doctor
from tests.cli.programs import run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_program() -> None:
    done = run("doctor", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    for fact in (
        aioinfer.__version__,
        platform.python_version(),
        torch.__version__,
        "uvloop",
        "device cpu",
        "usable",
    ):
        assert fact in done.stdout


def test_a_device_that_is_not_there_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    found = dict(doctor.findings())
    assert "built without CUDA" in found["device cuda"]
    assert "torch_npu is not installed" in found["device npu"]


def test_a_driver_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no driver" in dict(doctor.findings())["device cuda"]


def test_default_model(default_model_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert f"cached at {default_model_path}" in dict(doctor.findings())["default model"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert f"fetched on first use to {tmp_path}" in dict(doctor.findings())["default model"]
