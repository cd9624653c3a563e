"""`aioinfer bench` as a program: one JSON object, a table, and an honest exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.programs import run, serving

if TYPE_CHECKING:
    from pathlib import Path

WORKLOAD = ("--requests", "3", "--prompt-tokens", "8", "--output-tokens", "5", "--shared-prefix", "4")


def check_run(result: dict[str, Any], concurrency: int) -> None:
    assert result["concurrency"] == concurrency
    assert (result["requests"], result["errors"], result["first_error"]) == (3, 0, None)
    assert (result["output_tokens"], result["counted_from"]) == (15, "usage")
    assert result["prompt_tokens"] >= 3 * 8
    assert result["output_tokens_per_s"] == pytest.approx(15 / result["wall_s"], rel=0.05)
    for name in ("ttft_ms", "e2e_ms"):
        assert result[name]["count"] == 3
        assert 0 < result[name]["p50"] <= result[name]["p99"] <= result[name]["max"]
    assert result["loop_lag_ms"]["count"] >= 1
    assert 0 <= result["loop_lag_ms"]["p50"] <= result["loop_lag_ms"]["p99"] <= result["loop_lag_ms"]["max"]


@pytest.fixture(scope="module")
def url(tiny_llama_dir: Path) -> Any:
    with serving(str(tiny_llama_dir), "--served-model-name", "tiny") as (_, url):
        yield url


@pytest.mark.parametrize("api", ["completions", "chat", "websocket"])
def test_serve(url: str, api: str) -> None:
    done = run("bench", "serve", "--url", url, "--api", api, "--concurrency", "1,2", *WORKLOAD, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["target"] == {"kind": "serve", "url": url, "api": api, "model": "tiny"}
    assert report["workload"]["num_requests"] == 3
    for result, concurrency in zip(report["runs"], (1, 2), strict=True):
        check_run(result, concurrency)
        assert result["server_loop_lag_ms"] is not None


def test_table(url: str) -> None:
    done = run("bench", "serve", "--url", url, "--concurrency", "2", *WORKLOAD, COLUMNS="160")
    assert done.returncode == 0, done.stderr
    for heading in ("tokens/s", "TTFT p50", "ITL p50", "lag p50", "server lag p99"):
        assert heading in done.stdout


def test_failed_requests_show_in_the_exit_code(url: str) -> None:
    done = run("bench", "serve", "--url", url, "--model", "another", *WORKLOAD)
    assert done.returncode == 1
    assert "another" in done.stderr
    assert "Traceback" not in done.stderr


def test_engine(tiny_llama_dir: Path) -> None:
    done = run("bench", "engine", str(tiny_llama_dir), "--concurrency", "1,2", *WORKLOAD, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["target"]["kind"] == "engine"
    assert report["target"]["device"].startswith("cpu")
    for result, concurrency in zip(report["runs"], (1, 2), strict=True):
        check_run(result, concurrency)


def test_engine_beside_transformers(tiny_llama_dir: Path) -> None:
    words = ("--concurrency", "2", *WORKLOAD, "--baseline", "transformers", "--dtype", "float32")
    done = run("bench", "engine", str(tiny_llama_dir), *words, "--torch-threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["runs"]
    baseline = result["baseline"]
    assert (baseline["output_tokens"], baseline["batch_size"], baseline["num_threads"]) == (15, 2, 1)
    assert baseline["dtype"] == "float32"
    assert result["ratio"] == pytest.approx(
        result["output_tokens_per_s"] / baseline["output_tokens_per_s"], rel=0.05
    )
