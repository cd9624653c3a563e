"""aioinfer: an LLM inference engine that lives inside an asyncio program.

The public names are loaded on first use, so that importing aioinfer imports neither torch nor a
web framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aioinfer.config import EngineConfig, ServerConfig
    from aioinfer.engine import Engine, EngineInfo, EngineState, RequestStream
    from aioinfer.errors import AioinferError
    from aioinfer.types import Completion, Delta, FinishReason, SamplingParams, Usage

__version__ = "0.1.0"

_HOMES = {
    "AioinferError": "aioinfer.errors",
    "Completion": "aioinfer.types",
    "Delta": "aioinfer.types",
    "Engine": "aioinfer.engine",
    "EngineConfig": "aioinfer.config",
    "EngineInfo": "aioinfer.engine",
    "EngineState": "aioinfer.engine",
    "FinishReason": "aioinfer.types",
    "RequestStream": "aioinfer.engine",
    "SamplingParams": "aioinfer.types",
    "ServerConfig": "aioinfer.config",
    "Usage": "aioinfer.types",
}

__all__ = [
    "AioinferError",
    "Completion",
    "Delta",
    "Engine",
    "EngineConfig",
    "EngineInfo",
    "EngineState",
    "FinishReason",
    "RequestStream",
    "SamplingParams",
    "ServerConfig",
    "Usage",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
