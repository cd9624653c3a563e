"""The text of one request: its detokenizer and its stop strings, one after the other.

Owned by one request and used by one thread at a time (the loop for small steps, the text pool for large
ones).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioinfer.text.detokenizer import Detokenizer
    from aioinfer.text.stops import StopStrings


class TextUpdate(NamedTuple):
    """What became of some tokens.  (A tuple: one is made per sequence and step.)

    Attributes:
        text: text that may be emitted.
        stop: the stop string that ended the text, if one did.
        num_tokens: how many of the tokens were consumed; fewer than were given only when a stop string was
            complete before the last of them.
    """

    text: str
    stop: str | None
    num_tokens: int


class OutputText:
    """Turns the tokens of one request into the text that its client sees."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._stops = stops

    def push(self, token_ids: Sequence[int]) -> TextUpdate:
        """Consume tokens up to the one that completes a stop string, if one does."""
        if not self._stops:
            return TextUpdate(self._detokenizer.push(token_ids), None, len(token_ids))
        texts = []
        for num_tokens, token_id in enumerate(token_ids, start=1):
            text, stop = self._stops.push(self._detokenizer.push((token_id,)))
            texts.append(text)
            if stop is not None:
                return TextUpdate("".join(texts), stop, num_tokens)
        return TextUpdate("".join(texts), None, len(token_ids))

    def finish(self) -> str:
        """The text held back, at an end that no stop string caused."""
        text, stop = self._stops.push(self._detokenizer.flush())
        return text if stop is not None else text + self._stops.flush()
