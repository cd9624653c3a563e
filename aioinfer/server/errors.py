"""From an exception to what the client is told: one mapping for HTTP, server-sent events and WebSocket.

Answers have OpenAI's shape, ``{"error": {"message", "type", "param", "code"}}``, so that its clients raise
what they raise for OpenAI.  Pure but for the log: an exception that nobody raised on purpose is logged with
its traceback, and the client learns only under which request id.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from aioinfer.errors import (
    AioinferError,
    ConsumerTooSlow,
    EngineClosed,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    RequestFailed,
    UnknownModel,
    WrongLoop,
)
from aioinfer.server.request_id import REQUEST_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

INVALID = "invalid_request_error"
SERVER = "server_error"

# Loading takes seconds, and a draining server is soon replaced: a guess that keeps clients from hammering.
RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a client is told.

    Attributes:
        status: HTTP status.
        headers: further HTTP headers.
        message, type, param, code: OpenAI's fields.
    """

    status: int
    message: str
    type: str = INVALID
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, as every transport carries it."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


def failure_of(error: Exception) -> Failure:
    """What the client is told about `error`."""
    match error:
        case InvalidRequest():
            status = 404 if isinstance(error, UnknownModel) else 400
            return Failure(status=status, message=str(error), param=error.param, code=error.code)
        case Overloaded():
            return Failure(
                status=429,
                message=str(error),
                type="rate_limit_error",
                code="overloaded",
                headers=_retry_after(error.retry_after_s),
            )
        case ConsumerTooSlow():
            return Failure(status=408, message=str(error), code="consumer_too_slow")
        case RequestFailed():
            return Failure(status=500, message=str(error), type=SERVER, code="request_failed")
        case EngineClosed():
            return Failure(
                status=503,
                message=str(error),
                type=SERVER,
                code="unavailable",
                headers=_retry_after(RETRY_AFTER_S),
            )
        case EngineFailed():
            # 503 and not 500: no request of anybody's will succeed here, so a router should try elsewhere.
            # Without Retry-After: nothing here brings the engine back.
            return Failure(status=503, message=str(error), type=SERVER, code="engine_failed")
        case AioinferError() if not isinstance(error, WrongLoop):
            return Failure(status=500, message=str(error), type=SERVER, code="engine_error")
        case web.HTTPException():
            return _http_failure(error)
    logger.error("request %s failed unexpectedly", REQUEST_ID.get(), exc_info=error)
    return Failure(
        status=500,
        message=f"internal error; the server's log has it under request id {REQUEST_ID.get()}",
        type=SERVER,
        code="internal_error",
    )


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def _http_failure(error: web.HTTPException) -> Failure:
    """For what aiohttp refuses by itself, and for what we refuse in its terms."""
    match error:
        case web.HTTPNotFound():
            return Failure(
                status=404,
                message="there is no such route; served are /v1/models, /v1/chat/completions, "
                "/v1/completions, /v1/stream, /health, /ready and /metrics",
                code="unknown_url",
            )
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return Failure(
                status=405,
                message=f"this route does not take {error.method}; it takes {allowed}",
                code="method_not_allowed",
                headers={"Allow": allowed},
            )
        case web.HTTPRequestEntityTooLarge():
            return Failure(status=413, message=error.text or error.reason, code="body_too_large")
    kind = SERVER if error.status >= 500 else INVALID
    headers = {name: error.headers[name] for name in ("Upgrade",) if name in error.headers}
    return Failure(status=error.status, message=error.text or error.reason, type=kind, headers=headers)
