"""The id that ties a request, its answer and its lines in the log together.

Taken from the client's ``X-Request-Id`` if that is sound, made up otherwise, and returned with every answer.
It is a label: the engine's own ids are unique, clients' need not be.
"""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

HEADER = "X-Request-Id"

REQUEST_ID: ContextVar[str] = ContextVar("aioinfer_request_id", default="none")
"""Id of the HTTP request that the running task answers."""

_SOUND = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")


def choose_request_id(offered: str | None) -> str:
    """The client's id if it is 1 to 128 printable ASCII characters, else a new one."""
    if offered is not None and _SOUND.fullmatch(offered):
        return offered
    return uuid.uuid4().hex
