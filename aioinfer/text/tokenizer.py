"""Text to token ids and back, over the tokenizers library.

A `Tokenizer` is immutable and may be used from any thread.  `encode_batch` belongs in the text pool: it
releases the GIL while the library works (`tokenizers.Tokenizer.encode` does not, so nothing here calls
it).  Detokenisation is `aioinfer.text.detokenizer`'s; chat templates are `aioinfer.text.chat`'s.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import tokenizers

from aioinfer.errors import InvalidRequest, PromptTooLong, UnsupportedModel
from aioinfer.text.detokenizer import Detokenizer, TokenBytes
from aioinfer.text.gguf_tokenizer import build_gguf_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioinfer.types import TextAssets

CHARS_AT_ONCE_PER_TOKEN = 8
"""A text that is longer than this many characters per token of its bound is counted piece by piece first:
the library takes 1.5 us and 300 bytes for each token, and a body of 8 MB can have 8 million of them."""
MIN_CHARS_AT_ONCE = 4096


class Tokenizer:
    """A model's tokenizer.

    Attributes:
        vocab_size: one more than the highest token id.
        eos_token_ids: the tokens that end a generation.
        bos_token_id: the token that begins a text, if the model has one.

    Args:
        backend: must not be used elsewhere afterwards; padding and truncation are switched off.
        eos_token_ids: see above.
        bos_token: text of the token that begins a text.
        add_bos: whether `add_special_tokens` puts it there; None leaves it to `backend`.

    Raises:
        UnsupportedModel: the decoder is not supported, or the BOS token is not in the vocabulary.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: Iterable[int] = (),
        bos_token: str | None = None,
        add_bos: bool | None = None,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._token_bytes, self.vocab_size = _token_bytes(backend)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.bos_token_id = None if bos_token is None else backend.token_to_id(bos_token)
        if add_bos and self.bos_token_id is None:
            raise UnsupportedModel(
                f"prompts should begin with a BOS token, but the tokenizer has none (named: {bos_token!r})"
            )
        adds_bos = self._encode([""], add_special_tokens=True)[0].ids[:1] == [self.bos_token_id]
        self._prepend_bos = add_bos is True and not adds_bos
        self._drop_bos = add_bos is False and adds_bos

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = True,
        max_num_tokens: int | None = None,
        param: str = "prompt",
    ) -> list[list[int]]:
        """The token ids of each text; in the text pool, since long texts take long.

        Args:
            texts: any strings.  Special tokens written in them become those tokens.
            add_special_tokens: add what the model expects around a text (BOS, mostly).
            max_num_tokens: refuse texts with more tokens, before the GIL is held for making a list of them
                (5 ms for 100,000).
            param: what the caller calls the texts, for errors.

        Raises:
            InvalidRequest: a text is not encodable as UTF-8 (it has a lone surrogate).
            PromptTooLong: a text has more tokens than `max_num_tokens`.
        """
        params = [param] if len(texts) == 1 else [f"{param}[{index}]" for index in range(len(texts))]
        for text, name in zip(texts, params, strict=True):
            check_text(text, param=name)
            if max_num_tokens is not None:
                self._check_pieces(text, max_num_tokens, name)
        encodings = self._encode(texts, add_special_tokens=add_special_tokens)
        if max_num_tokens is not None:
            for encoding, name in zip(encodings, params, strict=True):
                if len(encoding) > max_num_tokens:
                    raise PromptTooLong(
                        f"{name} has {len(encoding)} tokens; at most {max_num_tokens} fit the context",
                        param=name,
                    )
        batch = [encoding.ids for encoding in encodings]
        if add_special_tokens and self.bos_token_id is not None:
            if self._prepend_bos:
                batch = [[self.bos_token_id, *ids] for ids in batch]
            elif self._drop_bos:
                batch = [ids[1:] for ids in batch]
        return batch

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        max_num_tokens: int | None = None,
        param: str = "prompt",
    ) -> list[int]:
        """`encode_batch` of one text."""
        return self.encode_batch(
            [text], add_special_tokens=add_special_tokens, max_num_tokens=max_num_tokens, param=param
        )[0]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence; ids that are not in the vocabulary have none.

        Equal to what a `Detokenizer` gives for the same ids in any portions.
        """
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def detokenizer(self, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True) -> Detokenizer:
        """A detokenizer for what is generated after `prompt_ids`."""
        return Detokenizer(self._token_bytes, prompt_ids, skip_special_tokens=skip_special_tokens)

    def _check_pieces(self, text: str, max_num_tokens: int, param: str) -> None:
        """Refuse a text that is far too long without encoding all of it."""
        piece_chars = max(CHARS_AT_ONCE_PER_TOKEN * max_num_tokens, MIN_CHARS_AT_ONCE)
        if len(text) <= piece_chars:
            return
        # A cut adds a token or two; no text has twice as many tokens in pieces as in one.
        num_tokens = 0
        for start in range(0, len(text), piece_chars):
            piece = text[start : start + piece_chars]
            num_tokens += len(self._encode([piece], add_special_tokens=False)[0])
            if num_tokens > 2 * max_num_tokens:
                raise PromptTooLong(
                    f"{param} has more than {max_num_tokens} tokens, the most that fit the context",
                    param=param,
                )

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[tokenizers.Encoding]:
        return self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)


def load_tokenizer(assets: TextAssets) -> Tokenizer:
    """The tokenizer of a checkpoint: from its tokenizer.json, or else built from its GGUF metadata.

    Raises:
        UnsupportedModel: there is neither, or it is of a kind that is not known.
        CorruptWeights: the GGUF metadata contradict themselves.
    """
    bos_token = assets.special_tokens.get("bos_token")
    if assets.tokenizer_json is not None:
        backend = _read_tokenizer_json(assets.tokenizer_json)
    elif assets.gguf_metadata is not None:
        backend, gguf_bos_token = build_gguf_tokenizer(assets.gguf_metadata)
        bos_token = bos_token or gguf_bos_token
    else:
        raise UnsupportedModel(
            "the model has no tokenizer: it needs a tokenizer.json or the tokenizer metadata of a GGUF file"
        )
    return Tokenizer(backend, eos_token_ids=assets.eos_token_ids, bos_token=bos_token, add_bos=assets.add_bos)


def check_text(text: object, *, param: str) -> None:
    """Refuse what the tokenizers library cannot take.

    Raises:
        InvalidRequest: `text` is not a string, or has a lone surrogate.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"{param} must be a string, got {type(text).__name__}", param=param)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{param} has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}; "
            "text must be valid Unicode, with characters above U+FFFF as one character or one surrogate pair",
            param=param,
        ) from None


def _read_tokenizer_json(content: bytes) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise UnsupportedModel(f"tokenizer.json cannot be used: {error}") from error


def _token_bytes(backend: tokenizers.Tokenizer) -> tuple[TokenBytes, int]:
    tokens = {token_id: token for token, token_id in backend.get_vocab(with_added_tokens=True).items()}
    added = backend.get_added_tokens_decoder()
    tokens |= {token_id: token.content for token_id, token in added.items()}
    special_ids = {token_id for token_id, token in added.items() if token.special}
    # Pickling is the library's one way to give a decoder's description without the whole vocabulary.
    decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
    return TokenBytes(tokens, special_ids, decoder), max(tokens, default=-1) + 1
