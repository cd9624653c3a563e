"""The command line as a whole: help without heavy imports, exit codes, one message per error."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import aioinfer
from tests.cli.programs import AIOINFER, run

if TYPE_CHECKING:
    from pathlib import Path

HELPS = [
    [],
    ["serve"],
    ["chat"],
    ["complete"],
    ["bench"],
    ["bench", "serve"],
    ["bench", "engine"],
    ["doctor"],
]
HEAVY = ("torch", "transformers", "aiohttp", "tokenizers", "jinja2", "gguf", "numpy")


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from aioinfer.cli.main import main\n"
        "try:\n"
        f"    main({[*words, '--help']!r})\n"
        "finally:\n"
        f"    print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: aioinfer")
    assert done.stdout.endswith("HEAVY []\n")


def test_importing_aioinfer_imports_nothing_heavy() -> None:
    code = f"import sys, aioinfer; assert not [name for name in {HEAVY!r} if name in sys.modules]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version() -> None:
    assert run("--version").stdout == f"aioinfer {aioinfer.__version__}\n"


@pytest.mark.parametrize(
    ("words", "environ", "message"),
    [
        (["serve", "--port", "many"], {}, "--port: "),
        (["--port", "70000"], {}, "--port: "),
        (["serve"], {"AIOINFER_DTYPE": "int3"}, "environment variable AIOINFER_DTYPE: "),
        (["serve", "--config", "nowhere.toml"], {}, "cannot read configuration file nowhere.toml"),
        (["serve", "--prot", "1"], {}, "unrecognized arguments: --prot"),
        (["surf"], {}, "invalid choice: 'surf'"),
        (["complete", "x", "--top-p", "2"], {}, "--top-p must be a number above 0 and at most 1, got 2.0"),
        (["complete", "x", "--top-k", "x"], {}, "argument --top-k: invalid int value"),
        (["complete"], {}, "required: PROMPT"),
        (["bench", "serve", "--concurrency", "1,0"], {}, "--concurrency: must be at least 1, got 0"),
        (["bench", "engine", "--requests", "-1"], {}, "--requests: must be a whole number, got '-1'"),
    ],
)
def test_usage_errors(words: list[str], environ: dict[str, str], message: str) -> None:
    variables: dict[str, Any] = environ
    done = run(*words, **variables)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "command", [["serve", "--port", "0"], ["chat"], ["complete", "x"], ["bench", "engine"]]
)
def test_a_model_that_is_not_there(command: list[str]) -> None:
    done = run(*command, "--model", "/no/such/model.gguf")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("aioinfer: ")
    assert "/no/such/model.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_input_that_is_not_text(tiny_llama_dir: Path) -> None:
    done = run("chat", str(tiny_llama_dir), stdin=b"\xff\xfe\n")
    assert done.returncode == 2
    assert "standard input must be UTF-8" in done.stderr


def test_output_that_the_terminal_cannot_show(tiny_llama_dir: Path) -> None:
    words = ("complete", "x", "--model", str(tiny_llama_dir), "--max-tokens", "40", "--ignore-eos")
    done = run(*words, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves(tiny_llama_dir: Path) -> None:
    words = (
        *AIOINFER,
        "complete",
        "x",
        "--model",
        str(tiny_llama_dir),
        "--ignore-eos",
        "--max-tokens",
        "100",
    )
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


def test_prompt_that_is_not_text() -> None:
    done = run("complete", "-", stdin=b"\xff\xfe")
    assert done.returncode == 2
    assert "standard input must be UTF-8" in done.stderr


def test_bench_of_a_server_that_is_not_there(unused_tcp_port: int) -> None:
    done = run("bench", "serve", "--url", f"http://127.0.0.1:{unused_tcp_port}")
    assert done.returncode == 1
    assert "cannot ask" in done.stderr
    assert "Traceback" not in done.stderr
