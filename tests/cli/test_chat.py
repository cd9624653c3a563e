"""`aioinfer chat` as a program, at a terminal and in a pipe; and its conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aioinfer
from aioinfer.cli.chat import Conversation
from tests.cli.programs import Terminal, run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

GREEDY = ("--temperature", "0")
# prompt_toolkit turns bracketed paste on when it is ready for keys, and off when it has a line.
PROMPT = r"\x1b\[\?2004h(?s:.*)>"


def test_terminal(default_model_path: Path) -> None:
    """Ctrl-C ends an answer, then clears what is typed, then leaves."""
    with Terminal("chat", str(default_model_path), "--ignore-eos", *GREEDY) as terminal:
        terminal.read_until(PROMPT)
        terminal.type("Tell me a long story.\r")
        terminal.read_until(r"\w+ \w+ \w+ \w+ \w+ \w+ \w+ \w+")
        terminal.type("\x03")
        terminal.read_until(rf"\[stopped\](?s:.*){PROMPT}")
        terminal.type("/help\r")
        terminal.read_until(rf"Ctrl-C stops an answer(?s:.*){PROMPT}")
        terminal.type("half a line")
        terminal.read_until("line")
        terminal.type("\x03/reset\r")
        terminal.read_until(rf"forgotten(?s:.*){PROMPT}")
        terminal.type("\x03")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.output


def test_end_of_input_leaves(tiny_llama_dir: Path) -> None:
    with Terminal("chat", str(tiny_llama_dir)) as terminal:
        terminal.read_until(PROMPT)
        terminal.type("\x04")
        assert terminal.wait() == 0


def test_pipe(default_model_path: Path) -> None:
    lines = b"What is the capital of France?\n\n/nonsense\n/help\n/reset\nSay hello.\n/quit\nnever read\n"
    done = run("chat", str(default_model_path), "--max-tokens", "12", *GREEDY, stdin=lines)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "There is no command /nonsense" in done.stdout
    assert "forgotten" in done.stdout
    assert "Traceback" not in done.stderr


def test_model_without_a_template(tiny_llama_dir: Path, tmp_path: Path) -> None:
    for file in tiny_llama_dir.iterdir():
        if not file.name.startswith(("chat_template", "tokenizer_config")):
            (tmp_path / file.name).symlink_to(file)
    done = run("chat", str(tmp_path), stdin=b"hi\n")
    assert done.returncode == 2
    assert "no chat template" in done.stderr


async def test_conversation_is_remembered_and_forgotten(
    default_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = aioinfer.SamplingParams(max_tokens=12, temperature=0)
    async with aioinfer.Engine(default_model_path) as engine:
        conversation = Conversation(engine, "You are brief.", params)
        await conversation.answer("My name is Ada.")
        await conversation.answer("What is my name?")
        roles = [message["role"] for message in conversation.messages]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
        assert all(message["content"] in capsys.readouterr().out for message in conversation.messages[4:])
        conversation.reset()
        assert conversation.messages == [{"role": "system", "content": "You are brief."}]


async def test_a_conversation_over_the_context_goes_on(
    default_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = aioinfer.SamplingParams(max_tokens=4, temperature=0)
    async with aioinfer.Engine(default_model_path, max_model_len=128) as engine:
        conversation = Conversation(engine, None, params)
        await conversation.answer("Hi.")
        await conversation.answer("word " * 200)
        assert "/reset starts a new one" in capsys.readouterr().out
        assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
        await conversation.answer("Hi again.")
        assert len(conversation.messages) == 4
        assert engine.stats().num_running == 0
