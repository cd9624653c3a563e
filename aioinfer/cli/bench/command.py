"""``aioinfer bench serve`` and ``aioinfer bench engine``: the command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from aioinfer.cli import settings
from aioinfer.cli.bench.workload import Workload
from aioinfer.cli.startup import open_engine, run_coroutine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioinfer import EngineConfig
    from aioinfer.cli.bench.baseline import BaselineResult
    from aioinfer.cli.bench.measure import Result
    from aioinfer.cli.settings import Settings

_EXIT_REQUESTS_FAILED = 1


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its two kinds."""
    parser = commands.add_parser(
        "bench",
        help="measure a running server or an engine",
        description="Measure tokens per second, time to first token, inter-token latency and event-loop lag.",
        allow_abbrev=False,
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    _add_serve(kinds)
    _add_engine(kinds)


def _add_serve(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = kinds.add_parser(
        "serve",
        help="drive a running server",
        description="Drive a running server that speaks OpenAI's streaming protocol. The loop lag is that of "
        "this client; the server's is added if its /metrics tells it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="root of the server (default: %(default)s)"
    )
    parser.add_argument(
        "--model",
        dest="remote_model",
        metavar="NAME",
        help="name to send (default: the first one the server lists)",
    )
    parser.add_argument("--api-key", default="", help="bearer token")
    parser.add_argument(
        "--api",
        choices=("completions", "chat", "websocket"),
        default="completions",
        help="how to ask (default: %(default)s)",
    )
    parser.add_argument(
        "--no-ignore-eos",
        action="store_true",
        help="for servers that refuse the parameter; answers may be shorter",
    )
    _add_workload(parser)
    settings.add_client_options(parser)
    parser.set_defaults(run=_run_serve)


def _add_engine(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = kinds.add_parser(
        "engine",
        help="drive an engine in this process",
        description="Drive an engine through its coroutine API. The loop lag is that of the engine's loop.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--baseline",
        choices=("transformers",),
        default=None,
        help="then run the same prompts through this, with the same batch size, dtype and threads",
    )
    _add_workload(parser)
    settings.add_client_options(parser)
    settings.add_options(parser, "engine", model_argument=True)
    parser.set_defaults(run=_run_engine)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload options")
    group.add_argument(
        "--concurrency", type=_counts, default=[8], metavar="N[,N...]", help="requests in flight (default: 8)"
    )
    group.add_argument(
        "--requests", type=_count, default=32, metavar="N", help="requests per run (default: %(default)s)"
    )
    group.add_argument(
        "--prompt-tokens",
        type=_count,
        default=64,
        metavar="N",
        help="about, per prompt (default: %(default)s)",
    )
    group.add_argument(
        "--output-tokens",
        type=_count,
        default=128,
        metavar="N",
        help="new tokens per request (default: %(default)s)",
    )
    group.add_argument(
        "--shared-prefix",
        type=_count_or_zero,
        default=0,
        metavar="N",
        help="about this many tokens that all prompts begin with (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="another one gives other prompts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def _count(text: str) -> int:
    if (value := _count_or_zero(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def _count_or_zero(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _workloads(args: argparse.Namespace) -> list[Workload]:
    """One per concurrency, each with prompts of its own, so that a prefix cache is cold for each."""
    return [
        Workload(
            concurrency=concurrency,
            num_requests=args.requests,
            prompt_tokens=args.prompt_tokens,
            output_tokens=args.output_tokens,
            shared_prefix=args.shared_prefix,
            seed=args.seed + index,
        )
        for index, concurrency in enumerate(args.concurrency)
    ]


def _run_serve(args: argparse.Namespace, _resolved: Settings) -> int:
    workloads = _workloads(args)
    target, results = run_coroutine(_bench_serve(args, workloads))
    return _report(args, target, workloads, results)


async def _bench_serve(
    args: argparse.Namespace, workloads: Sequence[Workload]
) -> tuple[dict[str, Any], list[Result]]:
    from aioinfer.cli.bench.client import BenchClient, lag_between
    from aioinfer.cli.bench.measure import measure

    results = []
    async with (
        BenchClient(
            args.url, model=args.remote_model, api_key=args.api_key, ignore_eos=not args.no_ignore_eos
        ) as client,
        client.target(args.api) as target,
    ):
        for workload in workloads:
            before = await client.loop_lag_buckets()
            result = await measure(target, workload)
            after = await client.loop_lag_buckets()
            results.append(replace(result, server_loop_lag_ms=lag_between(before, after)))
        return {"kind": "serve", "url": args.url, "api": args.api, "model": client.model}, results


def _run_engine(args: argparse.Namespace, resolved: Settings) -> int:
    workloads = _workloads(args)
    target, results, prompts = run_coroutine(_bench_engine(resolved.engine, workloads))
    baselines = _run_baseline(resolved.engine, target["dtype"], workloads, prompts) if args.baseline else []
    return _report(args, target, workloads, results, baselines)


async def _bench_engine(
    config: EngineConfig, workloads: Sequence[Workload]
) -> tuple[dict[str, Any], list[Result], list[list[list[int]]]]:
    """What was measured, the results, and the token ids of each workload's prompts."""
    from aioinfer.cli.bench.inprocess import EngineTarget
    from aioinfer.cli.bench.measure import measure

    async with open_engine(config) as engine:
        results = [await measure(EngineTarget(engine), workload) for workload in workloads]
        prompts = [[await engine.tokenize(prompt) for prompt in workload.prompts()] for workload in workloads]
        return {"kind": "engine", **asdict(engine.info)}, results, prompts


def _run_baseline(
    config: EngineConfig, dtype: str, workloads: Sequence[Workload], prompts: Sequence[list[list[int]]]
) -> list[BaselineResult]:
    from aioinfer.cli.bench.baseline import TransformersBaseline

    baseline = TransformersBaseline(config.model, dtype=dtype, num_threads=config.torch_threads)
    return [
        baseline.run(ids, batch_size=workload.concurrency, output_tokens=workload.output_tokens)
        for workload, ids in zip(workloads, prompts, strict=True)
    ]


def _report(
    args: argparse.Namespace,
    target: dict[str, Any],
    workloads: Sequence[Workload],
    results: Sequence[Result],
    baselines: Sequence[BaselineResult] = (),
) -> int:
    from aioinfer.cli.bench.report import as_json, as_table

    if args.json:
        print(json.dumps(as_json(target, workloads[0], results, baselines)))
    else:
        from rich.console import Console

        title = (
            f"{target['model']}: {args.requests} requests, {args.prompt_tokens} + {args.output_tokens} tokens"
        )
        Console().print(as_table(title, results, baselines))
    for result in results:
        if result.first_error:
            print(
                f"{result.errors} of {result.requests} requests failed: {result.first_error}", file=sys.stderr
            )
    return _EXIT_REQUESTS_FAILED if any(result.errors for result in results) else 0
