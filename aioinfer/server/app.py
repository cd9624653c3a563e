"""The aiohttp application: routes, and what happens around each of them.

`create_app` makes an application that runs by itself (`aioinfer.server.serve`) or inside another one
(``add_subapp``).  It does not open or close the engine.  Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import hdrs, web

from aioinfer import EngineState
from aioinfer.config import ServerConfig
from aioinfer.server import generation, websocket
from aioinfer.server.errors import RETRY_AFTER_S, failure_of
from aioinfer.server.request_id import HEADER, REQUEST_ID, choose_request_id
from aioinfer.server.service import SERVICE, Service

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

    from aioinfer import Engine

CLIENT_LEFT = 499  # nginx's word for it; never sent, only counted


def create_app(engine: Engine, config: ServerConfig | None = None) -> web.Application:
    """OpenAI's routes, the WebSocket, health and metrics, over an engine.

    The application serves while the engine loads (503, with when to come back) and after it has failed.
    Closing the engine is up to whoever opened it.

    A program that mounts it must run its own application with ``handler_cancellation=True`` (an argument of
    `aiohttp.web.run_app` and `AppRunner`); without it, requests go on after their clients have left.

    Args:
        engine: open, loading, or opened later.
        config: how to serve; host, port and log_level are not used here.
    """
    service = Service(engine, config or ServerConfig())
    app = web.Application(middlewares=[_boundary])
    app[SERVICE] = service
    app.router.add_get("/v1/models", models)
    app.router.add_get("/v1/models/{id:.+}", model)
    app.router.add_post("/v1/completions", generation.completions)
    app.router.add_post("/v1/chat/completions", generation.chat_completions)
    app.router.add_get("/v1/stream", websocket.stream)
    app.router.add_get("/health", health)
    app.router.add_get("/ready", ready)
    app.router.add_get("/metrics", metrics)
    app.on_response_prepare.append(_name_response)
    app.on_shutdown.append(_shut_down)
    return app


async def models(request: web.Request) -> web.Response:
    """The models served: one."""
    service = request.app[SERVICE]
    return _json({"object": "list", "data": [service.model_object()]})


async def model(request: web.Request) -> web.Response:
    """One model."""
    service = request.app[SERVICE]
    service.check_model(request.match_info["id"])
    return _json(service.model_object())


async def health(request: web.Request) -> web.Response:
    """Whether the process is worth keeping: only a failed engine is not."""
    state = request.app[SERVICE].state
    return _json({"state": state}, status=503 if state is EngineState.FAILED else 200)


async def ready(request: web.Request) -> web.Response:
    """Whether requests are taken."""
    state = request.app[SERVICE].state
    if state is EngineState.READY:
        return _json({"state": state})
    return _json({"state": state}, status=503, headers={"Retry-After": str(RETRY_AFTER_S)})


async def metrics(request: web.Request) -> web.Response:
    """Prometheus' scrape: the engine's numbers and the server's."""
    service = request.app[SERVICE]
    body, content_type = service.engine.metrics.render()
    return web.Response(body=body + service.metrics.render(), headers={"Content-Type": content_type})


@web.middleware
async def _boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request its id, turn exceptions into answers, count what was answered."""
    REQUEST_ID.set(choose_request_id(request.headers.get(HEADER)))
    service = request.app[SERVICE]
    status = CLIENT_LEFT
    try:
        response = await _answer(request, handler)
        status = response.status
    finally:
        service.metrics.answered(method=_method(request), route=_route(request), status=status)
    if service.draining and not response.prepared:
        response.force_close()
    return response


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Exception as error:
        failure = failure_of(error)
        return _json({"error": failure.error}, status=failure.status, headers=failure.headers)


def _method(request: web.Request) -> str:
    return request.method if request.method in hdrs.METH_ALL else "other"


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return "unmatched" if resource is None else resource.canonical


async def _name_response(request: web.Request, response: web.StreamResponse) -> None:
    response.headers[HEADER] = REQUEST_ID.get()


async def _shut_down(app: web.Application) -> None:
    service = app[SERVICE]
    service.draining = True
    await asyncio.gather(*(session.shut_down() for session in service.sessions))


def _json(data: Any, *, status: int = 200, headers: Any = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(data), status=status, headers=headers, content_type="application/json"
    )
