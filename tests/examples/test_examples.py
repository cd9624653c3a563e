"""Every example runs and prints what it is for."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.programs import Program, serving

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTED_HERE = {
    "embed_in_asyncio.py",
    "two_engines.py",
    "chat_client.py",
    "websocket_client.py",
    "mount_in_aiohttp.py",
}


def run_example(name: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED_HERE


def test_embed_in_asyncio(default_model_path: Path) -> None:
    out = run_example("embed_in_asyncio.py", str(default_model_path))
    assert re.search(r"answer: .*\d+ tokens", out)
    assert "stream:  Paris" in out
    assert out.count("batch:") == 3
    assert "running requests now: 0" in out


def test_two_engines(default_model_path: Path) -> None:
    out = run_example("two_engines.py", str(default_model_path), str(default_model_path))
    assert re.search(r"question: why.+\?\nanswer: +\S", out)


@pytest.fixture(scope="module")
def url(default_model_path: Path) -> object:
    with serving(str(default_model_path), "--served-model-name", "smollm2") as (_, url):
        yield url


def test_chat_client(url: str) -> None:
    assert re.search(r"\w+(?s:.*)\n\[smollm2: \d+ tokens\]\n$", run_example("chat_client.py", url))


def test_websocket_client(url: str) -> None:
    out = run_example("websocket_client.py", url)
    assert "short: length after 8 tokens" in out
    assert re.search(r"endless: abort after \d{1,3} tokens", out)


def test_mount_in_aiohttp(default_model_path: Path) -> None:
    program = Program(
        [sys.executable, "-u", str(EXAMPLES / "mount_in_aiohttp.py"), str(default_model_path), "0"]
    )
    try:
        url = program.read_until(r"Running on (http://\S+:\d+)")[1]
        with urllib.request.urlopen(url) as response:
            assert response.read().startswith(b"Welcome to ")
        with urllib.request.urlopen(f"{url}/llm/v1/models") as response:
            assert b'"data"' in response.read()
    finally:
        program.close()
