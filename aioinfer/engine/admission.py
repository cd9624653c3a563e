"""Who is let in: bounds on what waits, and the checks of a prompt against the model.

Loop thread only.  Nothing is done for a request before it has passed the first check.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aioinfer.errors import InvalidRequest, Overloaded, PromptTooLong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aioinfer.scheduling import Scheduler
    from aioinfer.types import SamplingParams

RATE_WINDOW = 32  # requests that left the queue, from which the rate is measured
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


class Admission:
    """Args:
    scheduler: whose queue is bounded.
    max_waiting: most requests that wait, those whose text is being worked on included.
    max_waiting_tokens: most prompt tokens that wait.
    rejected: told the reason of each refusal.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        max_waiting: int,
        max_waiting_tokens: int,
        rejected: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._max_waiting = max_waiting
        self._max_waiting_tokens = max_waiting_tokens
        self._rejected = rejected
        self._num_in_text = 0
        self._ended_s: deque[float] = deque(maxlen=RATE_WINDOW)

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return self._num_in_text + self._scheduler.num_waiting

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place among the waiting, held while a request's text is worked on.

        Raises:
            Overloaded: there is none.
        """
        if self.num_waiting >= self._max_waiting:
            self._refuse(
                "requests", f"{self.num_waiting} requests wait already; at most {self._max_waiting} may"
            )
        self._num_in_text += 1
        try:
            yield
        finally:
            self._num_in_text -= 1

    def check_tokens(self, num_tokens: int) -> None:
        """Refuse a prompt whose tokens are too many for the queue.  An empty queue takes any prompt.

        Raises:
            Overloaded: they are.
        """
        waiting = self._scheduler.num_waiting_tokens
        if waiting and waiting + num_tokens > self._max_waiting_tokens:
            self._refuse(
                "tokens", f"{waiting} prompt tokens wait already; at most {self._max_waiting_tokens} may"
            )

    def request_ended(self) -> None:
        """Note that a request made room for another."""
        self._ended_s.append(time.monotonic())

    def retry_after_s(self) -> float:
        """When a place may be free, from the rate at which requests have ended lately."""
        if len(self._ended_s) < 2:
            return MIN_RETRY_S
        interval_s = (time.monotonic() - self._ended_s[0]) / len(self._ended_s)
        return min(max(interval_s, MIN_RETRY_S), MAX_RETRY_S)

    def _refuse(self, reason: str, message: str) -> None:
        self._rejected(reason)
        raise Overloaded(message, retry_after_s=self.retry_after_s())


def check_prompt_ids(prompt_ids: Sequence[int], vocab_size: int, *, param: str) -> None:
    """Refuse a prompt that has no tokens, or ids that the model does not know.

    Args:
        param: what the caller calls it.

    Raises:
        InvalidRequest: it has.
    """
    if not prompt_ids:
        raise InvalidRequest(
            f"{param} is empty; it needs at least one token", param=param, code="empty_prompt"
        )
    for index, token in enumerate(prompt_ids):
        if not isinstance(token, int) or isinstance(token, bool):
            raise InvalidRequest(
                f"{param}[{index}] must be a token id, got {type(token).__name__}", param=f"{param}[{index}]"
            )
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"{param}[{index}] is {token}; token ids go from 0 to {vocab_size - 1}",
                param=f"{param}[{index}]",
            )


def check_stop_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse stop tokens that the model does not know.

    Raises:
        InvalidRequest: there are some.
    """
    for token in params.stop_token_ids:
        if token >= vocab_size:
            raise InvalidRequest(
                f"stop_token_ids has {token}; token ids go from 0 to {vocab_size - 1}", param="stop_token_ids"
            )


def check_room(num_prompt: int, max_model_len: int, *, param: str) -> int:
    """How many tokens the context has room for behind a prompt.

    Args:
        param: what the caller calls its prompt.

    Raises:
        PromptTooLong: not for one.
    """
    room = max_model_len - num_prompt
    if room < 1:
        raise PromptTooLong(
            f"the prompt has {num_prompt} tokens; the context of {max_model_len} tokens takes at most "
            f"{max_model_len - 1}, and one to generate",
            param=param,
        )
    return room


def resolve_max_tokens(num_prompt: int, max_tokens: int | None, max_model_len: int, *, param: str) -> int:
    """How many tokens a request may generate.

    Raises:
        PromptTooLong: the prompt leaves no room for a token, or `max_tokens` do not fit behind it.
    """
    room = check_room(num_prompt, max_model_len, param=param)
    if max_tokens is None:
        return room
    if max_tokens > room:
        raise PromptTooLong(
            f"max_tokens is {max_tokens}; after a prompt of {num_prompt} tokens the context of "
            f"{max_model_len} tokens has room for {room}",
            param="max_tokens",
        )
    return max_tokens
