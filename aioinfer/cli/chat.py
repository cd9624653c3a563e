"""``aioinfer chat``: a conversation in the terminal.

Owns the conversation's messages and the terminal while it runs.  SIGINT during an answer ends that answer;
at an empty prompt it ends the program, as the end of input does.  Lines that are not typed at a terminal
are read as prompts one after the other, so that ``echo hi | aioinfer chat`` works.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from aioinfer.cli import settings
from aioinfer.cli.sampling import add_sampling_options, sampling_params
from aioinfer.cli.startup import open_engine, run_coroutine, text_of
from aioinfer.errors import ConfigError, InvalidRequest, Overloaded, PromptTooLong, RequestFailed
from aioinfer.types import FinishReason

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    from aioinfer import Engine, EngineConfig, SamplingParams
    from aioinfer.cli.settings import Settings

_HELP = """/reset  forget the conversation
/quit   leave (also Ctrl-D, or Ctrl-C at an empty prompt)
/help   this
Ctrl-C stops an answer."""
_PROMPT = "> "


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description="Talk to a model in the terminal. Ctrl-C stops an answer; /help lists the commands.",
        allow_abbrev=False,
    )
    parser.add_argument("--system", metavar="TEXT", help="system message that the conversation begins with")
    add_sampling_options(parser)
    settings.add_client_options(parser)
    settings.add_options(parser, "engine", model_argument=True)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, resolved: Settings) -> int:
    """Run the command."""
    run_coroutine(_chat(resolved.engine, args.system, sampling_params(args)))
    return 0


async def _chat(config: EngineConfig, system: str | None, params: SamplingParams) -> None:
    async with open_engine(config) as engine:
        if not engine.info.has_chat_template:
            raise ConfigError(
                f"{engine.info.model} has no chat template; give one with --chat-template, or use complete"
            )
        conversation = Conversation(engine, system, params)
        lines = _TerminalLines() if sys.stdin.isatty() else _PipedLines()
        while (line := await lines.read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/quit":
                    return
                case "/help":
                    print(_HELP)
                case "/reset":
                    conversation.reset()
                    print("The conversation is forgotten.")
                case command if command.startswith("/"):
                    print(f"There is no command {command}.\n{_HELP}")
                case text:
                    await conversation.answer(text)


class Conversation:
    """The messages so far, and how to go on.

    Args:
        system: content of the system message, if there is to be one.
    """

    def __init__(self, engine: Engine, system: str | None, params: SamplingParams) -> None:
        self._engine = engine
        self._params = params
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, Any]] = list(self._first)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._first)

    async def answer(self, text: str) -> None:
        """Print the model's answer to `text` as it comes; SIGINT ends it, and what came is kept."""
        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            finish_reason = await self._stream(pieces)
        except PromptTooLong as error:
            print(f"{error}\nThe conversation no longer fits the model's context. /reset starts a new one.")
        except (InvalidRequest, Overloaded, RequestFailed) as error:
            print(f"{error}")
        else:
            print(
                {FinishReason.LENGTH: " [cut: no more tokens]", FinishReason.ABORT: " [stopped]"}.get(
                    finish_reason, ""
                )
            )
        if pieces:
            self.messages.append({"role": "assistant", "content": "".join(pieces)})
        else:
            self.messages.pop()  # a turn without an answer would leave two user messages in a row

    async def _stream(self, pieces: list[str]) -> FinishReason:
        """Print an answer and collect it in `pieces`; how it ended."""
        stream = self._engine.stream_chat(self.messages, self._params)
        with _on_interrupt(stream.cancel):
            async with stream:
                async for delta in stream:
                    pieces.append(delta.text)
                    print(delta.text, end="", flush=True)
                    if delta.finish_reason is not None:
                        return delta.finish_reason
        return FinishReason.ABORT


class _Lines(Protocol):
    async def read(self) -> str | None:
        """The next line without its end; None when there is none or the user leaves."""
        ...


class _PipedLines:
    async def read(self) -> str | None:
        line = await asyncio.to_thread(sys.stdin.buffer.readline)
        return text_of(line).rstrip("\n") if line else None


class _TerminalLines:
    def __init__(self) -> None:
        from prompt_toolkit import PromptSession

        self._session: PromptSession[str] = PromptSession(_PROMPT, key_bindings=_key_bindings())

    async def read(self) -> str | None:
        try:
            return await self._session.prompt_async()
        except EOFError:
            return None


def _key_bindings() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("c-c")
    def _(event: KeyPressEvent) -> None:
        """Clear what is typed, or leave if nothing is."""
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=EOFError)

    return bindings


@contextmanager
def _on_interrupt(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` on SIGINT, instead of what was to happen before."""
    loop = asyncio.get_running_loop()
    previous = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, callback)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, previous)
