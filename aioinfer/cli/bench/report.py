"""Results of a benchmark as a table for people and as one JSON object for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from aioinfer.cli.bench.baseline import BaselineResult
    from aioinfer.cli.bench.measure import Result, Spread
    from aioinfer.cli.bench.workload import Workload

_DIGITS = 3


def as_json(
    target: dict[str, Any],
    workload: Workload,
    results: Sequence[Result],
    baselines: Sequence[BaselineResult] = (),
) -> dict[str, Any]:
    """One object: what was measured, with which workload, and a list of runs, one per concurrency.

    Args:
        baselines: none, or one per result.
    """
    runs = [_rounded(asdict(result)) for result in results]
    for run, baseline in zip(runs, baselines, strict=bool(baselines)):
        run["baseline"] = _rounded(asdict(baseline))
        run["ratio"] = round(run["output_tokens_per_s"] / baseline.output_tokens_per_s, _DIGITS)
    shape = asdict(workload)
    del shape["concurrency"]
    return {"target": target, "workload": shape, "runs": runs}


def as_table(title: str, results: Sequence[Result], baselines: Sequence[BaselineResult] = ()) -> Table:
    """One row per concurrency."""
    from rich.table import Table

    table = Table(title=title, caption="times in ms")
    columns = [
        "conc.",
        "requests",
        "errors",
        "tokens/s",
        "TTFT p50",
        "p99",
        "ITL p50",
        "p99",
        "lag p50",
        "p99",
        "max",
    ]
    with_server = any(result.server_loop_lag_ms for result in results)
    if with_server:
        columns.append("server lag p99")
    if baselines:
        columns += ["baseline tokens/s", "ratio"]
    for column in columns:
        table.add_column(column, justify="right")
    for index, result in enumerate(results):
        cells = [str(result.concurrency), str(result.requests), str(result.errors)]
        cells.append(_number(result.output_tokens_per_s))
        cells += [*_middle_and_tail(result.ttft_ms), *_middle_and_tail(result.itl_ms)]
        cells += [*_middle_and_tail(result.loop_lag_ms), _number(result.loop_lag_ms.max)]
        if with_server:
            lag = result.server_loop_lag_ms
            cells.append("-" if lag is None or lag.p99_at_most is None else f"≤ {lag.p99_at_most:.1f}")
        if baselines:
            baseline = baselines[index].output_tokens_per_s
            cells += [_number(baseline), f"{result.output_tokens_per_s / baseline:.2f}"]
        table.add_row(*cells)
    return table


def _middle_and_tail(spread: Spread) -> tuple[str, str]:
    return _number(spread.p50), _number(spread.p99)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
