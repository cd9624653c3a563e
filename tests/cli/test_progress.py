"""The loading bar on a terminal and without one."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING

from rich.console import Console

from aioinfer.cli import progress

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def use_console(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> io.StringIO:
    out = io.StringIO()

    def console(stderr: bool) -> Console:
        assert stderr
        return Console(file=out, force_terminal=terminal, width=100)

    make: Callable[..., Console] = console
    monkeypatch.setattr(progress, "Console", make)
    return out


def test_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = use_console(monkeypatch, terminal=True)
    with progress.LoadingBar() as bar:
        bar("Waiting", 0, None)
        bar("Fetching", 1_000_000, 2_000_000)
        bar("Fetching", 2_000_000, 2_000_000)
    assert "Waiting" in out.getvalue()
    assert "2.0/2.0 MB" in out.getvalue()


def test_no_terminal(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    out = use_console(monkeypatch, terminal=False)
    with caplog.at_level(logging.INFO), progress.LoadingBar() as bar:
        for done in range(5):
            bar("Fetching", done, 4)
    assert out.getvalue().strip() == ""
    assert [record.getMessage() for record in caplog.records] == ["Fetching"]
