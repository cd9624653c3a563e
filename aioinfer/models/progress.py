"""How a long download reports itself."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told how far a download is, several times a second.

    It may be called from another thread than the one that waits for the download, but never from two at
    once.  An exception raised here ends the download, cleans up, and reaches the caller of `locate`: that is
    how to cancel one.
    """

    def __call__(self, description: str, done_bytes: int, total_bytes: int | None, /) -> None:
        """Report.

        Args:
            description: what is being done, for people.
            done_bytes: how much of it is done.
            total_bytes: how much there is; None while nobody knows.
        """
