"""Value objects that cross layers: what a request asks for and what it gets.

Standard library only, so that every layer (the pure scheduler included) can import it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from aioinfer.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_SEED = 2**63 - 1
MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 128
MAX_STOP_STRING_CHARS = 1024


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


def _check(condition: bool, param: str, message: str) -> None:
    if not condition:
        raise InvalidRequest(f"{param} {message}", param=param)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop.

    Attributes:
        max_tokens: most new tokens, at least 1; None means as many as the context has room for.
        temperature: 0 (greedy) to 100; the logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches it; (0, 1].
        min_p: drop tokens less likely than this share of the most likely one; [0, 1].
        seed: 0 to 2**63 - 1; the same seed gives the same text, whatever else is in the batch.
            None draws one.
        stop: strings that end the text; they and what follows them are not returned.
        stop_token_ids: tokens that end the text.
        ignore_eos: go on when the model says that it is done.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        InvalidRequest: a value is outside its range; `param` names it.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check(
            self.max_tokens is None or (_is_int(self.max_tokens) and self.max_tokens >= 1),
            "max_tokens",
            f"must be an integer of at least 1, got {self.max_tokens!r}",
        )
        _check(
            _is_number(self.temperature) and 0 <= self.temperature <= 100,
            "temperature",
            f"must be a number from 0 to 100, got {self.temperature!r}",
        )
        _check(
            _is_int(self.top_k) and self.top_k >= 0,
            "top_k",
            f"must be a non-negative integer (0 keeps all tokens), got {self.top_k!r}",
        )
        _check(
            _is_number(self.top_p) and 0 < self.top_p <= 1,
            "top_p",
            f"must be a number above 0 and at most 1, got {self.top_p!r}",
        )
        _check(
            _is_number(self.min_p) and 0 <= self.min_p <= 1,
            "min_p",
            f"must be a number from 0 to 1, got {self.min_p!r}",
        )
        _check(
            self.seed is None or (_is_int(self.seed) and 0 <= self.seed <= MAX_SEED),
            "seed",
            f"must be an integer from 0 to {MAX_SEED}, got {self.seed!r}",
        )
        _check(
            isinstance(self.stop, tuple)
            and len(self.stop) <= MAX_STOP_STRINGS
            and all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_STRING_CHARS for s in self.stop),
            "stop",
            f"must be at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_STRING_CHARS} characters",
        )
        _check(
            isinstance(self.stop_token_ids, tuple)
            and len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS
            and all(_is_int(t) and t >= 0 for t in self.stop_token_ids),
            "stop_token_ids",
            f"must be at most {MAX_STOP_TOKEN_IDS} non-negative integers",
        )
        for name in ("ignore_eos", "skip_special_tokens"):
            _check(isinstance(getattr(self, name), bool), name, "must be a boolean")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, with no draw."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a request cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a request produced since the last delta.

    Attributes:
        text: new text; the deltas of a request joined are its whole text.
        token_ids: the tokens behind it; text may lag behind them while a character or a possible stop
            string is incomplete.
        finish_reason: set on the last delta and only there.
        stop_reason: the stop string or stop token id that ended it, if one did.
        usage: set on the last delta.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The whole result of a request."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAssets:
    """What a checkpoint says about its text side, as it stands in the files.

    Attributes:
        tokenizer_json: contents of tokenizer.json, if there is one.
        gguf_metadata: the `tokenizer.*` keys of a GGUF file, if that is where the tokenizer is.
        chat_template: the default Jinja template, if there is one.
        special_tokens: text of `bos_token`, `eos_token`, `unk_token`, `pad_token`, for templates.
        eos_token_ids: every token that ends a generation.
        add_bos: whether a prompt starts with the BOS token; None leaves it to the tokenizer.
    """

    tokenizer_json: bytes | None = None
    gguf_metadata: Mapping[str, Any] | None = None
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()
    add_bos: bool | None = None
