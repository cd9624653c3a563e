"""The command line as a whole: help without heavy imports, exit codes, one message per error."""

from __future__ import annotations

import os
import shlex
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


@pytest.mark.parametrize("model", ["/no/such/model.gguf", "~nobody-has-this-name/model", "a" * 5000])
@pytest.mark.parametrize(
    "command", [["serve", "--port", "0"], ["chat"], ["complete", "x"], ["bench", "engine"]]
)
def test_a_model_that_is_not_there(command: list[str], model: str) -> None:
    done = run(*command, "--model", model)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("aioinfer: ")
    assert model in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("template", ["~nobody-has-this-name/t.jinja", "a" * 5000])
def test_a_chat_template_that_is_not_there(tiny_llama_dir: Path, template: str) -> None:
    done = run("complete", "x", "--model", str(tiny_llama_dir), "--chat-template", template)
    assert done.returncode == 2
    assert done.stderr.startswith("aioinfer: chat_template: cannot read")


@pytest.mark.parametrize("content", ["[server]\nport = " + "9" * 5000, "[server]\nport = " + "[" * 50_000])
def test_a_file_that_the_toml_library_chokes_on(tmp_path: Path, content: str) -> None:
    path = tmp_path / "aioinfer.toml"
    path.write_text(content)
    done = run("serve", "--config", str(path))
    assert done.returncode == 2
    assert "is not TOML" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("prompt", ["x", "-"])
def test_standard_streams_that_are_closed(tiny_llama_dir: Path, closed: str, prompt: str) -> None:
    command = shlex.join((*AIOINFER, "complete", prompt, "--model", str(tiny_llama_dir), "--max-tokens", "3"))
    done = subprocess.run(
        ["sh", "-c", f"{command} {closed}"], input=b"x", capture_output=True, check=False, timeout=60
    )
    no_prompt = prompt == "-" and "<" in closed
    assert done.returncode == (2 if no_prompt else 0), done.stderr
    assert b"Traceback" not in done.stderr


def test_a_full_disk(tiny_llama_dir: Path) -> None:
    words = (*AIOINFER, "complete", "x", "--model", str(tiny_llama_dir), "--max-tokens", "3")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "aioinfer: cannot write the output: No space left on device\n"


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
