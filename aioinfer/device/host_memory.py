"""Memory of the host that has been freed, and that the C library keeps for itself."""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Give freed memory back to the system, where the C library is glibc; others do it by themselves.

    glibc keeps what a thread has freed for the next one: a gigabyte of weights, after an engine was closed.
    Takes milliseconds per gigabyte; not for the loop thread.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
