"""``aioinfer complete``: one completion of a prompt, streamed to standard output."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from aioinfer.cli import settings
from aioinfer.cli.sampling import add_sampling_options, sampling_params
from aioinfer.cli.startup import open_engine, run_coroutine, text_of

if TYPE_CHECKING:
    import argparse

    from aioinfer import EngineConfig, SamplingParams
    from aioinfer.cli.settings import Settings


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "complete",
        help="complete a prompt",
        description="Complete a prompt, without a chat template, and stream the text to standard output.",
        allow_abbrev=False,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the text to go on from; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print the whole result as a JSON object")
    add_sampling_options(parser)
    settings.add_client_options(parser)
    settings.add_options(parser, "engine")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, resolved: Settings) -> int:
    """Run the command."""
    params = sampling_params(args)
    prompt = text_of(sys.stdin.buffer.read()) if args.prompt == "-" else args.prompt
    run_coroutine(_complete(resolved.engine, prompt, params, as_json=args.json))
    return 0


async def _complete(config: EngineConfig, prompt: str, params: SamplingParams, *, as_json: bool) -> None:
    async with open_engine(config) as engine:
        if as_json:
            completion = await engine.generate(prompt, params)
            print(json.dumps(asdict(completion), ensure_ascii=False))
            return
        async with engine.stream(prompt, params) as stream:
            async for delta in stream:
                print(delta.text, end="", flush=True)
        print()
