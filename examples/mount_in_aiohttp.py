"""aioinfer's routes under /llm of another aiohttp application, which has pages of its own.

python examples/mount_in_aiohttp.py [MODEL [PORT]]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aiohttp import web

from aioinfer import Engine
from aioinfer.server import create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENGINE = web.AppKey("engine", Engine)


async def home(request: web.Request) -> web.Response:
    completion = await request.app[ENGINE].generate("Welcome to", max_tokens=8)
    return web.Response(text=f"Welcome to{completion.text}\n")


def build(model: str | None) -> web.Application:
    engine = Engine(model)

    async def run_engine(app: web.Application) -> AsyncIterator[None]:
        async with engine:
            yield

    app = web.Application()
    app[ENGINE] = engine
    app.cleanup_ctx.append(run_engine)
    app.router.add_get("/", home)
    app.add_subapp("/llm", create_app(engine))
    return app


if __name__ == "__main__":
    # handler_cancellation ends a request when its client leaves.
    web.run_app(
        build(sys.argv[1] if len(sys.argv) > 1 else None),
        host="127.0.0.1",
        port=int(sys.argv[2]) if len(sys.argv) > 2 else 8080,
        handler_cancellation=True,
    )
