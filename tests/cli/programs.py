"""Programs run as people run them: a command line, pipes or a terminal, signals."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Sequence
    from pathlib import Path

AIOINFER = (sys.executable, "-m", "aioinfer")
# The program gets the terminal as its controlling one, so that Ctrl-C typed there becomes a SIGINT.
_ON_TERMINAL = (
    "import fcntl, os, sys, termios;fcntl.ioctl(0, termios.TIOCSCTTY, 0);os.execv(sys.argv[1], sys.argv[1:])"
)


def run(
    *words: str, stdin: bytes = b"", cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run `aioinfer` to its end."""
    done = subprocess.run(
        [*AIOINFER, *words],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, **environ},
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Program:
    """A running program whose output (standard output and error together) is read until something appears."""

    def __init__(self, words: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        self.output = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read on until the output so far matches; fails if it ends before."""
        while (match := re.search(pattern, self.output)) is None:
            if not (piece := os.read(self._out, 65536)):
                raise AssertionError(f"ended without {pattern!r}:\n{self.output}")
            self.output += piece.decode(errors="replace")
        return match

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Read to the end of the output; the exit code."""
        while piece := os.read(self._out, 65536):
            self.output += piece.decode(errors="replace")
        return self.process.wait()

    def close(self) -> None:
        """End the program if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def running(*words: str) -> Iterator[Program]:
    """`aioinfer` with these words, ended when the block is left."""
    program = Program([*AIOINFER, *words])
    try:
        yield program
    finally:
        program.close()


@contextmanager
def serving(*words: str) -> Iterator[tuple[Program, str]]:
    """A server on a free port that is ready, and its URL."""
    with running("serve", "--port", "0", *words) as program:
        yield program, program.read_until(r"at (http://\S+:\d+)")[1]


class Terminal:
    """`aioinfer` on a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self._terminal, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *AIOINFER, *words],
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )
        os.close(other)
        self.output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def type(self, text: str) -> None:
        """Type at the terminal; what was shown until now is forgotten."""
        self.output = ""
        os.write(self._terminal, text.encode())

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read on until what was shown since the last `type` matches."""
        while (match := re.search(pattern, self.output)) is None:
            try:
                piece = os.read(self._terminal, 65536)
            except OSError:  # Linux's end of file on a terminal whose program is gone
                raise AssertionError(f"ended without {pattern!r}:\n{self.output}") from None
            self.output += piece.decode(errors="replace")
        return match

    def wait(self) -> int:
        """The exit code, once the program ends; what it shows until then is read."""
        try:
            while piece := os.read(self._terminal, 65536):
                self.output += piece.decode(errors="replace")
        except OSError:
            pass
        return self.process.wait()
