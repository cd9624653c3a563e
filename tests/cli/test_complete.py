"""`aioinfer complete` as a program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.cli.programs import run

if TYPE_CHECKING:
    from pathlib import Path


def test_streamed_text_is_the_text_of_the_json(default_model_path: Path) -> None:
    prompt = "The capital of France is"
    words = (
        "--model",
        str(default_model_path),
        "--max-tokens",
        "8",
        "--temperature",
        "0",
        "--dtype",
        "float32",
    )
    streamed = run("complete", prompt, *words)
    assert streamed.returncode == 0, streamed.stderr
    whole = run("complete", "-", "--json", *words, stdin=prompt.encode())
    assert whole.returncode == 0, whole.stderr
    completion = json.loads(whole.stdout)
    assert streamed.stdout == completion["text"] + "\n"
    assert "Paris" in completion["text"]
    assert completion["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] == len(completion["token_ids"]) == 8


def test_prompt_over_the_context(tiny_llama_dir: Path) -> None:
    done = run("complete", "word " * 200, "--model", str(tiny_llama_dir), "--max-model-len", "32")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("aioinfer: ")
    assert "32" in done.stderr
    assert "Traceback" not in done.stderr
