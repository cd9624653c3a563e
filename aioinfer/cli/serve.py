"""``aioinfer serve``: the HTTP and WebSocket server, until a signal ends it."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import aioinfer
from aioinfer.cli import settings
from aioinfer.cli.startup import process_age_s, run_coroutine

if TYPE_CHECKING:
    import argparse

    from aioinfer import EngineInfo
    from aioinfer.cli.settings import Settings


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "serve",
        help="serve over HTTP and WebSocket (the default)",
        description="Serve a model over HTTP and WebSocket. SIGINT and SIGTERM let running requests finish "
        "within --drain-s; a second one stops at once.",
        allow_abbrev=False,
    )
    settings.add_config_option(parser)
    settings.add_options(parser, "engine", model_argument=True)
    settings.add_options(parser, "server")
    parser.set_defaults(run=run)


def run(_args: argparse.Namespace, resolved: Settings) -> int:
    """Run the command."""
    run_coroutine(_serve(resolved))
    return 0


async def _serve(resolved: Settings) -> None:
    from aioinfer.cli.progress import LoadingBar
    from aioinfer.server import serve

    with LoadingBar() as bar:
        engine = aioinfer.Engine(config=resolved.engine, progress=bar)

        def announce(url: str) -> None:
            bar.close()
            model = resolved.server.served_model_name or engine.info.model
            print(banner(engine.info, model=model, url=url, age_s=process_age_s()), flush=True)

        await serve(engine, resolved.server, on_ready=announce)
    if engine.failure is not None:
        raise engine.failure


def banner(info: EngineInfo, *, model: str, url: str, age_s: float) -> str:
    """What a person needs to know at start-up, and a request to copy."""
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 16}
    path = "completions"
    if info.has_chat_template:
        body = {"model": model, "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 64}
        path = "chat/completions"
    command = ["curl", f"{url}/v1/{path}", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return "\n".join(
        (
            f"aioinfer serves {model} at {url}, {age_s:.1f} s after its start",
            f"  device    {info.device}, {info.dtype}",
            f"  KV cache  {info.kv_capacity_tokens} tokens in blocks of {info.block_size}",
            f"  limits    {info.max_model_len} tokens per request, {info.max_num_seqs} requests at once",
            "Try:",
            f"  {shlex.join(command)}",
        )
    )
