"""From the words of a command line to a command, and from its end to an exit code.

Owns the top-level parser, logging and the exit codes: 0 done, 1 the model or the engine failed, 2 the
command line, configuration or request is wrong, 130 interrupted.  An error made on purpose is one message
on standard error; only a bug shows a traceback.
"""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import sys
from typing import TYPE_CHECKING

import aioinfer
from aioinfer.cli import chat, complete, doctor, serve, settings
from aioinfer.cli.bench import command as bench
from aioinfer.errors import AioinferError, ConfigError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_COMMAND = "serve"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_COMMANDS = (serve, chat, complete, bench, doctor)
_GLOBAL_FLAGS = {"-h", "--help", "--version"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the process's exit code.

    Args:
        argv: the words after the program's name; None takes those of the process.
    """
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # models write what not every terminal can show
    args = build_parser().parse_args(_with_command(sys.argv[1:] if argv is None else argv))
    try:
        resolved = settings.resolve(vars(args), os.environ)
        _configure_logging(settings.log_level(vars(args), resolved.server))
        code: int = args.run(args, resolved)
        sys.stdout.flush()
    except (ConfigError, InvalidRequest) as error:
        return _fail(error, EXIT_USAGE)
    except AioinferError as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        _drop_output()
        return _fail(AioinferError(f"cannot write the output: {error.strerror}"), EXIT_FAILED)
    return code


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = argparse.ArgumentParser(
        prog="aioinfer",
        description="LLM inference inside an asyncio program.",
        epilog=f"Without a command, aioinfer runs {DEFAULT_COMMAND}. COMMAND --help lists its options.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"aioinfer {aioinfer.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


def _with_command(argv: Sequence[str]) -> list[str]:
    if not argv or (argv[0].startswith("-") and argv[0] not in _GLOBAL_FLAGS):
        return [DEFAULT_COMMAND, *argv]
    return list(argv)


def _configure_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def _open_missing_streams() -> None:
    """Put the null device where a standard stream is closed.

    Else the next file or socket gets the stream's number, and libuv ends the process when it closes that.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It gets the lowest free number, which is the stream's.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _drop_output() -> None:
    """Nobody takes our output: the interpreter's last flush must not raise the same error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: AioinferError, code: int) -> int:
    print(f"aioinfer: {error}", file=sys.stderr)
    return code
