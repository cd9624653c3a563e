"""A bar on standard error for downloads and loading; one log line for each stage where there is no terminal.

`LoadingBar` is called from whichever thread does the work; rich has a lock of its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from rich.progress import TaskID

log = logging.getLogger(__name__)


class LoadingBar:
    """Context manager that shows what it is told, and is gone when left."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away, before something else is shown; idempotent."""
        self._progress.stop()

    def __call__(self, description: str, done_bytes: int, total_bytes: int | None) -> None:
        """Show that `description` is done so far; a description not seen before gets a bar of its own."""
        if description not in self._tasks:
            self._tasks[description] = self._progress.add_task(description, total=total_bytes)
            if self._progress.disable:
                log.info("%s", description)
        self._progress.update(self._tasks[description], completed=done_bytes, total=total_bytes)
