"""What the routes of one application share: the engine, the configuration, whether it takes work, the names.

Owns no connection and no task.  Loop thread only.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

from aiohttp import web

import aioinfer
from aioinfer import EngineState
from aioinfer.errors import EngineClosed, EngineFailed, UnknownModel
from aioinfer.server.metrics import ServerMetrics
from aioinfer.server.replies import ChatReply, CompletionReply
from aioinfer.server.schemas import ChatRequest

if TYPE_CHECKING:
    from aioinfer import Engine, RequestStream, ServerConfig
    from aioinfer.server.replies import Reply
    from aioinfer.server.schemas import CompletionRequest
    from aioinfer.server.websocket import Session


class Service:
    """Args:
    engine: who generates; its life is not the service's.
    config: how it is served.

    Attributes:
        draining: set when the server is going down, and never unset.
        sessions: those of the open WebSockets.
    """

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.draining = False
        self.sessions: set[Session] = set()
        self.metrics = ServerMetrics(num_websockets=lambda: len(self.sessions))
        self.started = int(time.time())

    @property
    def state(self) -> EngineState:
        """The engine's state; `draining` also while only the server is."""
        if self.draining and self.engine.state is EngineState.READY:
            return EngineState.DRAINING
        return self.engine.state

    def require_ready(self) -> None:
        """Refuse work that cannot be taken now, before anything is done for it.

        Raises:
            EngineFailed: it never will be.
            EngineClosed: the model is still loading, or the server is going down.
        """
        if self.engine.failure is not None:
            raise EngineFailed(str(self.engine.failure)) from self.engine.failure
        if self.state is not EngineState.READY:
            raise EngineClosed(f"the server is {self.state} and takes requests when it is ready")

    @property
    def model(self) -> str:
        """The name that clients know.

        Raises:
            EngineClosed: there is none before a model is loaded.
        """
        return self.config.served_model_name or self.engine.info.model

    @property
    def fingerprint(self) -> str:
        """Changes when the same request may give another text."""
        info = self.engine.info
        identity = f"{aioinfer.__version__} {info.model} {info.device} {info.dtype}"
        return f"fp_{hashlib.sha256(identity.encode()).hexdigest()[:10]}"

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served; no name means the one that is.

        Raises:
            UnknownModel: another is meant.
        """
        if name is not None and name != self.model:
            raise UnknownModel(f"the model {name[:200]!r} does not exist here; {self.model!r} is served")

    def model_object(self) -> dict[str, Any]:
        """OpenAI's object for the model that is served."""
        return {
            "id": self.model,
            "object": "model",
            "created": self.started,
            "owned_by": "aioinfer",
            "max_model_len": self.engine.info.max_model_len,
        }

    def reply(self, body: ChatRequest | CompletionRequest) -> Reply:
        """The empty answer to a request."""
        kind = ChatReply if isinstance(body, ChatRequest) else CompletionReply
        return kind(model=self.model, fingerprint=self.fingerprint, include_usage=body.include_usage)

    def streams(self, body: ChatRequest | CompletionRequest, request_id: str) -> list[RequestStream]:
        """What generates the choices of a request, not yet started.

        Raises:
            InvalidRequest: a parameter is out of range.
        """
        params = body.sampling()
        if isinstance(body, ChatRequest):
            return [self.engine.stream_chat(body.messages, params, request_id=request_id)]
        return [
            self.engine.stream(prompt, params, request_id=f"{request_id}-{index}")
            for index, prompt in enumerate(body.prompt.items)
        ]


SERVICE = web.AppKey("aioinfer_service", Service)
