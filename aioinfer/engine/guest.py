"""What an open engine changes in the process, and puts back: the engine is a guest in someone else's program.

Process-wide, so engines that overlap share one change: the first makes it, the last undoes it.  Loop thread.
"""

from __future__ import annotations

import gc
import sys
import threading

_lock = threading.Lock()  # engines may live on loops in different threads
_guests = 0
_switch_interval_s = 0.0
_froze = False


def enter(switch_interval_s: float) -> None:
    """Hand the GIL over more often: at the default interval a busy thread delays the loop by 5 ms."""
    global _guests, _switch_interval_s
    with _lock:
        if _guests == 0:
            _switch_interval_s = sys.getswitchinterval()
            sys.setswitchinterval(min(switch_interval_s, _switch_interval_s))
        _guests += 1


def freeze_garbage() -> None:
    """Keep the collector from walking what has been loaded: that would stall the loop for 0.1 s or more.

    A program that froze objects of its own is left alone.
    """
    global _froze
    with _lock:
        if not _froze and gc.get_freeze_count() == 0:
            gc.freeze()
            _froze = True


def leave() -> None:
    """Undo what `enter` and `freeze_garbage` did, with the last engine."""
    global _guests, _froze
    with _lock:
        _guests -= 1
        if _guests == 0:
            sys.setswitchinterval(_switch_interval_s)
            if _froze:
                gc.unfreeze()
                _froze = False
