"""`aioinfer serve` as a program: its banner, its curl line, its signals."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import urllib.request
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.cli.programs import AIOINFER, Program, running, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def long_stream(url: str, *, max_tokens: int) -> Iterator[HTTPResponse]:
    """A streamed completion of which the first event has been read."""
    body = {"prompt": "One, two,", "stream": True, "max_tokens": max_tokens, "ignore_eos": True, "model": "m"}
    with closing(HTTPConnection(urlsplit(url).netloc)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            assert response.status == 200
            assert response.readline().startswith(b"data: ")
            yield response


def test_banner_and_its_curl_line(default_model_path: Path) -> None:
    with running("--port", "0", "--model", str(default_model_path), "--kv-cache-tokens", "4096") as program:
        banner = program.read_until(r"(?s)aioinfer serves .*?\n  curl [^\n]*\n")[0]
        assert "4096 tokens" in banner
        assert "s after its start" in banner
        curl, url, *options = shlex.split(banner.splitlines()[-1])
        assert curl == "curl"
        assert options[0::2] == ["-H", "-d"]
        name, _, value = options[1].partition(": ")
        request = urllib.request.Request(url, data=options[3].encode(), headers={name: value})
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        assert answer["choices"][0]["message"]["content"]
        assert answer["usage"]["completion_tokens"] >= 1
        program.send_signal(signal.SIGTERM)
        assert program.wait() == 0
        assert "Traceback" not in program.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(tiny_llama_dir: Path, number: signal.Signals) -> None:
    with serving(str(tiny_llama_dir), "--served-model-name", "m") as (program, url):
        with long_stream(url, max_tokens=100) as response:
            program.send_signal(number)
            events = response.read()
        assert b'"finish_reason":"length"' in events.replace(b" ", b"")
        assert events.rstrip().endswith(b"data: [DONE]")
        assert program.wait() == 0


def test_a_second_signal_stops_at_once(default_model_path: Path) -> None:
    words = (str(default_model_path), "--served-model-name", "m", "--drain-s", "1000")
    with serving(*words) as (program, url):
        with long_stream(url, max_tokens=8000) as response:
            program.send_signal(signal.SIGINT)
            program.read_until("letting running requests finish")
            program.send_signal(signal.SIGINT)
            program.wait()
            with pytest.raises((IncompleteRead, ConnectionError)):
                response.read()
        assert "Traceback" not in program.output


def test_port_in_use(tiny_llama_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        program = Program([*AIOINFER, "serve", str(tiny_llama_dir), "--port", str(port)])
        assert program.wait() == 2
        program.close()
    assert f"cannot listen on 127.0.0.1 port {port}" in program.output
    assert "in use" in program.output
    assert "Traceback" not in program.output


def test_log_level(tiny_llama_dir: Path) -> None:
    with serving(str(tiny_llama_dir), "--log-level", "error") as (program, _):
        program.send_signal(signal.SIGTERM)
        assert program.wait() == 0
        assert "INFO" not in program.output
