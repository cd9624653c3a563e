"""The aiohttp application: OpenAI's routes, server-sent events, WebSocket, operations."""

from aioinfer.server.app import create_app
from aioinfer.server.runner import make_runner, serve

__all__ = ["create_app", "make_runner", "serve"]
