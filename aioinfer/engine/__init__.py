"""The coroutine API and the step loop behind it."""

from aioinfer.engine.engine import Engine
from aioinfer.engine.info import EngineInfo, EngineState
from aioinfer.engine.stream import RequestStream

__all__ = ["Engine", "EngineInfo", "EngineState", "RequestStream"]
