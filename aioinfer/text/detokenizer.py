"""Tokens to text as they come, never half a character.

A vocabulary is turned into one byte string per token, once; text is then those bytes through a UTF-8
decoder that keeps an incomplete character (at most 3 bytes) until it is complete or turns out to be
none.  So a delta costs time in proportion to its own tokens, nothing can be held for ever, and the deltas
of a sequence joined are its whole text.  Bytes that are no character become U+FFFD, one for each maximal
part of one (Unicode 15, section 3.9, as `bytes.decode` and Rust's `from_utf8_lossy` do).  In a run of
byte-fallback tokens the tokenizers library gives up the whole run for one bad byte, characters included;
text that was already sent cannot be taken back, so here the characters stay.

`TokenBytes` is immutable and shared by all threads; a `Detokenizer` belongs to one request and is used by
one thread at a time.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aioinfer.errors import UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_decode_utf8 = codecs.utf_8_decode
_MAX_INCOMPLETE_BYTES = 3
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Of the decoders that tokenizer.json can name, those whose text for a token does not depend on later
# tokens.
_PIECEWISE = re.compile(r"(Replace )*(ByteFallback )?(Fuse (Strip )?)?")


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's convention).

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for U+0100 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)).difference(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


@dataclass(slots=True)
class _TextStart:
    """What a decoder does at the very start of a text, and how much of it is still to do.

    Attributes:
        strip: bytes to remove from the start of the text.
        num_strips: how often at most.
        first_token: the bytes of a token where it is the first one, for decoders that care.
    """

    strip: bytes = b""
    num_strips: int = 0
    first_token: Mapping[int, bytes] | None = None

    @property
    def done(self) -> bool:
        return self.num_strips == 0 and self.first_token is None

    def apply(self, token_id: int, data: bytes) -> bytes:
        if self.first_token is not None:
            data, self.first_token = self.first_token[token_id], None
        while self.num_strips and data.startswith(self.strip):
            data = data[len(self.strip) :]
            self.num_strips -= 1
        if data:
            self.num_strips = 0
        return data


class TokenBytes:
    """The bytes that each token stands for, by the rules of a tokenizer's decoder.

    Args:
        tokens: the text in the vocabulary of every token id.
        special_ids: ids that are left out of the text on request.
        decoder: the decoder as it stands in tokenizer.json; None joins tokens with spaces.

    Raises:
        UnsupportedModel: the decoder is of a kind whose text depends on later tokens, or unknown.
    """

    def __init__(
        self, tokens: Mapping[int, str], special_ids: Collection[int], decoder: Mapping[str, Any] | None
    ) -> None:
        self._strip, self._num_strips = b"", 0
        self._first_token: Mapping[int, bytes] | None = None
        self._all = self._convert(tokens, list(_steps(decoder)))
        special = frozenset(special_ids)
        self._without_special = {
            token_id: data for token_id, data in self._all.items() if token_id not in special
        }

    def table(self, *, skip_special_tokens: bool) -> Mapping[int, bytes]:
        """Bytes by token id; ids that have no text are not in it."""
        return self._without_special if skip_special_tokens else self._all

    def start(self) -> _TextStart:
        return _TextStart(self._strip, self._num_strips, self._first_token)

    def _convert(self, tokens: Mapping[int, str], steps: list[Mapping[str, Any]]) -> dict[int, bytes]:
        kinds = [step.get("type") for step in steps]
        if not steps:
            self._first_token = {token_id: token.encode() for token_id, token in tokens.items()}
            return {token_id: b" " + data for token_id, data in self._first_token.items()}
        if kinds == ["ByteLevel"]:
            alphabet = byte_alphabet()
            return {token_id: _byte_level(token, alphabet) for token_id, token in tokens.items()}
        if kinds == ["Metaspace"]:
            mark = steps[0]["replacement"]
            if steps[0].get("prepend_scheme", "always") != "never":
                self._first_token = {
                    token_id: token.replace(mark, "").encode() for token_id, token in tokens.items()
                }
            return {token_id: token.replace(mark, " ").encode() for token_id, token in tokens.items()}
        if _PIECEWISE.fullmatch("".join(f"{kind} " for kind in kinds)):
            return self._convert_piecewise(tokens, steps)
        raise _unsupported(" + ".join(map(str, kinds)))

    def _convert_piecewise(
        self, tokens: Mapping[int, str], steps: list[Mapping[str, Any]]
    ) -> dict[int, bytes]:
        replacements: list[tuple[str, str]] = []
        byte_fallback = False
        for step in steps:
            if step["type"] == "Replace":
                if "String" not in step["pattern"]:
                    raise _unsupported("Replace with a regular expression")
                replacements.append((step["pattern"]["String"], step["content"]))
            elif step["type"] == "ByteFallback":
                byte_fallback = True
            elif step["type"] == "Strip":
                if step["stop"]:
                    raise _unsupported("Strip at the end of the text")
                self._strip, self._num_strips = step["content"].encode(), step["start"]
        table = {}
        for token_id, token in tokens.items():
            text = token
            for pattern, content in replacements:
                text = text.replace(pattern, content)
            byte = _BYTE_TOKEN.fullmatch(text) if byte_fallback else None
            table[token_id] = bytes([int(byte[1], 16)]) if byte else text.encode()
        return table


class Detokenizer:
    """The text of one sequence, token by token.

    A character that the prompt began and the generation completes is text of the generation.  A character
    that is never completed is shown as U+FFFD, once, unless all of its bytes are the prompt's.

    Args:
        token_bytes: the vocabulary.
        prompt_ids: the tokens before the first one that is pushed; nothing of their text comes out again.
        skip_special_tokens: leave special tokens out of the text.
    """

    __slots__ = ("_num_prompt_bytes", "_pending", "_start", "_table")

    def __init__(
        self, token_bytes: TokenBytes, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self._table = token_bytes.table(skip_special_tokens=skip_special_tokens)
        self._start: _TextStart | None = token_bytes.start()
        self._take_start(prompt_ids)
        self._pending = self._incomplete_end(prompt_ids)
        self._num_prompt_bytes = len(self._pending)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make final.  Ids that are not in the vocabulary have no text."""
        if self._start is not None:
            data = self._take_start(token_ids)
        elif len(token_ids) == 1:
            data = self._table.get(token_ids[0], b"")
        else:
            table = self._table
            data = b"".join([table.get(token_id, b"") for token_id in token_ids])
        if self._pending:
            data = self._pending + data
            if self._num_prompt_bytes:
                data = self._settle_prompt(data)
        text, num_bytes = _decode_utf8(data, "replace", False)
        self._pending = data[num_bytes:]
        return text

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was begun and not completed."""
        begun = len(self._pending) > self._num_prompt_bytes
        self._pending, self._num_prompt_bytes = b"", 0
        return "\ufffd" if begun else ""

    def _take_start(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of tokens at the start of the text, or past it."""
        start, parts = self._start, []
        for token_id in token_ids:
            data = self._table.get(token_id)
            if data is None:
                continue
            if start is not None and not start.done:
                data = start.apply(token_id, data)
            parts.append(data)
            if start is not None and start.done:
                self._start = start = None
        return b"".join(parts)

    def _incomplete_end(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of the character in the middle of which the text of `token_ids` ends."""
        end = b""
        for token_id in reversed(token_ids):
            end = self._table.get(token_id, b"") + end
            if len(end) >= _MAX_INCOMPLETE_BYTES:
                break
        return end[_decode_utf8(end, "replace", False)[1] :]

    def _settle_prompt(self, data: bytes) -> bytes:
        """`data` begins with bytes of the prompt; without them once they are known to be no character."""
        try:
            if _decode_utf8(data, "strict", False)[1] == 0:
                return data  # still incomplete
        except UnicodeDecodeError as error:
            if error.end == self._num_prompt_bytes:
                data = data[error.end :]
        self._num_prompt_bytes = 0
        return data


def _steps(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The decoders of a sequence of them, nested or not."""
    if decoder is None:
        return
    if decoder.get("type") == "Sequence":
        for inner in decoder["decoders"]:
            yield from _steps(inner)
    else:
        yield decoder


def _byte_level(token: str, alphabet: Mapping[str, int]) -> bytes:
    try:
        return bytes([alphabet[char] for char in token])
    except KeyError:  # an added token, which is written as it is
        return token.encode()


def _unsupported(decoder: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"the tokenizer's decoder ({decoder}) is not supported; supported are ByteLevel, Metaspace, none, "
        "and Replace + ByteFallback + Fuse + Strip in this order, each optional"
    )
