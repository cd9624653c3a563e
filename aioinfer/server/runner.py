"""Running the application as a server of its own: settings, signals, and going down in order.

`serve` owns the engine's life.  It is the only place that touches signal handlers, and puts them back.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Self

from aiohttp import web

from aioinfer import EngineState
from aioinfer.config import ServerConfig
from aioinfer.errors import ConfigError
from aioinfer.server.app import create_app
from aioinfer.server.service import SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from aioinfer import Engine

    _Handler = Callable[[int, FrameType | None], object] | int | None

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# The engine has drained before; what is left is to deliver last answers.
FLUSH_S = 5.0

# A burst of clients that connect at once must not meet a full queue.
BACKLOG = 1024


def make_runner(app: web.Application, *, shutdown_timeout_s: float = FLUSH_S) -> web.AppRunner:
    """A runner with the settings that the application needs; the one place that has them.

    Args:
        shutdown_timeout_s: on cleanup, how long handlers may go on before they are cancelled.
    """
    # Without cancellation a client that leaves before its first token is never noticed.
    return web.AppRunner(app, handler_cancellation=True, shutdown_timeout=shutdown_timeout_s)


async def serve(
    engine: Engine,
    config: ServerConfig | None = None,
    *,
    on_ready: Callable[[str], None] | None = None,
) -> signal.Signals:
    """Serve until a signal ends it, then close the engine.

    Listens before the model is loaded.  SIGINT or SIGTERM drains: not ready any more, no new connections or
    requests, running ones may finish within the engine's `drain_s`, those left are ended.  A second signal
    ends everything at once.  Needs the main thread, like all signal handling.

    Args:
        engine: new, then it is opened here; or open.
        config: how to serve.
        on_ready: called with the server's URL when it takes requests.

    Returns:
        The signal that ended it, for a caller that passes it on.

    Raises:
        ConfigError: the address cannot be listened on.
        ModelError, BackendUnavailable: the engine cannot be opened.
    """
    config = config or ServerConfig()
    app = create_app(engine, config)
    runner = make_runner(app)
    with StopSignals(at_once=partial(_stop_at_once, engine, runner)) as signals:
        # Left in the opposite order: the engine drains while its clients are still connected.
        async with AsyncExitStack() as stack:
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            url = await _listen(runner, config)
            stack.push_async_exit(engine)
            if await _open(engine, signals.first):
                if on_ready is not None:
                    on_ready(url)
                await signals.first.wait()
            app[SERVICE].draining = True
            for site in runner.sites:
                await site.stop()
    return signals.received


class StopSignals:
    """While entered, SIGINT and SIGTERM are requests to stop, instead of what they were before.

    Args:
        at_once: called by the second signal.

    Attributes:
        first: set by the first signal.
        received: which that was.
    """

    def __init__(self, *, at_once: Callable[[], None]) -> None:
        self.first = asyncio.Event()
        self.received = signal.SIGTERM
        self._at_once = at_once
        self._previous: dict[signal.Signals, _Handler] = {}

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            self._previous[number] = signal.getsignal(number)
            loop.add_signal_handler(number, self._receive, number)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number, previous in self._previous.items():
            loop.remove_signal_handler(number)
            if previous is not None:  # one that was not set from Python cannot be set from it
                signal.signal(number, previous)

    def _receive(self, number: signal.Signals) -> None:
        if self.first.is_set():
            logger.warning("%s again: stopping at once", number.name)
            self._at_once()
        else:
            logger.info("%s: letting running requests finish; once more stops at once", number.name)
            self.received = number
            self.first.set()


async def _listen(runner: web.AppRunner, config: ServerConfig) -> str:
    """Listen, and return the URL under which a browser on this machine finds the server."""
    site = web.TCPSite(runner, config.host, config.port, backlog=BACKLOG)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {config.host} port {config.port}: {error}") from error
    host, port = runner.addresses[0][:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _open(engine: Engine, stop: asyncio.Event) -> bool:
    """Load the model, unless it is loaded; False if `stop` came first."""
    if engine.state is not EngineState.NEW:
        return True
    loading = asyncio.create_task(engine.__aenter__())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        loading.cancel()
        await asyncio.wait((loading, stopping))
    if loading.cancelled():
        return False
    loading.result()
    return True


def _stop_at_once(engine: Engine, runner: web.AppRunner) -> None:
    """End what a drain is waiting for."""
    engine.terminate()
    if runner.server is not None:
        for connection in runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
