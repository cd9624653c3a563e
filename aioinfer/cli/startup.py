"""What every command that generates needs: an event loop, an engine with a progress bar, text."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import aioinfer
from aioinfer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from aioinfer import Engine, EngineConfig

_Result = TypeVar("_Result")


def run_coroutine(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `main` on a new event loop of the kind this platform has: uvloop, or asyncio's on Windows."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop, or asyncio's own loop on Windows, for which there is no uvloop."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


@asynccontextmanager
async def open_engine(config: EngineConfig) -> AsyncIterator[Engine]:
    """An open engine; while it loads, a bar on standard error tells how far it is."""
    from aioinfer.cli.progress import LoadingBar

    async with AsyncExitStack() as stack:
        with LoadingBar() as bar:
            engine = await stack.enter_async_context(aioinfer.Engine(config=config, progress=bar))
        yield engine


def process_age_s() -> float:
    """Seconds since this process was started; where there is no /proc, since this module was imported."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    except FileNotFoundError:
        return time.perf_counter() - _IMPORTED_S
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


_IMPORTED_S = time.perf_counter()


def text_of(data: bytes) -> str:
    """What standard input held, as text.

    Raises:
        ConfigError: it is not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input must be UTF-8 text: {error}") from None
