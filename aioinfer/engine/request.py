"""A request as the engine sees it: its sequence, its text, its mailbox, and when things happened.

Loop thread only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aioinfer.engine.mailbox import Mailbox
from aioinfer.types import Completion, FinishReason, Usage

if TYPE_CHECKING:
    from aioinfer.scheduling import Sequence
    from aioinfer.text.output import OutputText


@dataclass(slots=True, eq=False)
class Request:
    """Attributes:
    request_id: the caller's name for it.
    sequence: what the scheduler knows of it.
    output: from its tokens to its text.
    arrival_s, started_s, first_token_s, last_token_s: on the monotonic clock, when it got there.
    token_ids, texts: what has been delivered.
    finish_reason, stop_reason: set at its end.
    """

    request_id: str
    sequence: Sequence
    output: OutputText
    arrival_s: float
    started_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    mailbox: Mailbox = field(default_factory=Mailbox)

    @property
    def usage(self) -> Usage:
        """So far."""
        return Usage(prompt_tokens=self.sequence.num_prompt_tokens, completion_tokens=len(self.token_ids))

    def push(self, token: int, *, is_stop_token: bool, is_last: bool, now_s: float) -> str | None:
        """Take the next token; returns the stop string that it completed, if it did.

        Args:
            is_stop_token: it ends the text and is not part of it.
            is_last: no other follows, so held-back text comes out.
        """
        self.token_ids.append(token)
        stop: str | None = None
        text = ""
        if not is_stop_token:
            update = self.output.push((token,))
            text, stop = update.text, update.stop
        if is_last and stop is None:
            text += self.output.finish()
        if text:
            self.texts.append(text)
        self.mailbox.put(text, token, now_s)
        return stop

    def finish(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        """The end: no token comes after it."""
        self.finish_reason, self.stop_reason = reason, stop_reason
        self.mailbox.finish("", reason, stop_reason, self.usage)

    def fail(self, error: Exception) -> None:
        """The end, by an error that the reader gets."""
        self.finish_reason = FinishReason.ERROR
        self.mailbox.fail(error)

    def completion(self) -> Completion:
        """The whole result of a request that has ended."""
        if self.finish_reason is None:
            raise RuntimeError(f"request {self.request_id} has not ended")
        return Completion(
            request_id=self.request_id,
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            usage=self.usage,
        )
