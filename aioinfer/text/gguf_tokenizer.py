"""Tokenizers built from the metadata of a GGUF file, on the tokenizers library.

A GGUF file has no tokenizer.json: it has the vocabulary, the type of each token, merges or scores, and
the name of the rest.  Two models are supported, by `tokenizer.ggml.model`: `gpt2`, byte-level BPE, and
`llama`, SentencePiece's BPE with byte fallback.  Called once, when a model is loaded; keeps nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from aioinfer.errors import CorruptWeights, UnsupportedModel
from aioinfer.text.pretokenizers import pre_tokenization

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

_SPACE = "\u2581"
# These begin and end texts and turns.  They are special whatever their type says: some files mark them
# normal.
_SPECIAL_NAMES = ("bos", "eos", "eot", "eom")


class _TokenType(IntEnum):
    """llama.cpp's `llama_token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> tuple[Tokenizer, str | None]:
    """The tokenizer that the `tokenizer.*` keys of a GGUF file describe, and the text of its BOS token.

    Raises:
        UnsupportedModel: the tokenizer's model or its pre-tokenizer is not known.
        CorruptWeights: keys are missing or contradict each other.
    """
    vocabulary = _Vocabulary(metadata)
    kind = vocabulary.get("model", str)
    if kind == "gpt2":
        tokenizer, add_bos = _byte_level(vocabulary)
    elif kind == "llama":
        tokenizer, add_bos = _sentencepiece(vocabulary), True
    else:
        raise UnsupportedModel(
            f"the GGUF file's tokenizer model {kind!r} (tokenizer.ggml.model) is not supported; "
            "supported are gpt2 (byte-level BPE) and llama (SentencePiece BPE)"
        )
    _add_tokens(tokenizer, vocabulary)
    _add_template(tokenizer, vocabulary, add_bos=add_bos)
    return tokenizer, vocabulary.special("bos")


class _Vocabulary:
    """Checked access to the keys."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.tokens: list[str] = self.get("tokens", list)
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise CorruptWeights("the GGUF file's vocabulary (tokenizer.ggml.tokens) has a token twice")
        self.types: list[int] = self.per_token("token_type") or [_TokenType.NORMAL] * len(self.tokens)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, kind):
            problem = (
                "has no" if value is None else f"has {type(value).__name__} instead of {kind.__name__} in"
            )
            raise CorruptWeights(f"the GGUF file {problem} tokenizer.ggml.{key}")
        return value

    def per_token(self, key: str) -> list[Any]:
        """The list under `key`, one entry a token, or an empty one if there is no such key."""
        values = self.get(key, list, [])
        if values and len(values) != len(self.tokens):
            raise CorruptWeights(
                f"the GGUF file has {len(self.tokens)} tokens but {len(values)} in tokenizer.ggml.{key}"
            )
        return values

    def special(self, name: str) -> str | None:
        """The token that `tokenizer.ggml.NAME_token_id` points to."""
        key = f"{name}_token_id"
        token_id = self.get(key, int, -1)
        if token_id == -1:
            return None
        if not 0 <= token_id < len(self.tokens):
            raise CorruptWeights(
                f"the GGUF file's tokenizer.ggml.{key} is {token_id}; there are {len(self.tokens)} tokens"
            )
        return self.tokens[token_id]

    def has_merges(self) -> bool:
        return "tokenizer.ggml.merges" in self._metadata

    def merges(self) -> list[tuple[str, str]]:
        merges = []
        for merge in self.get("merges", list):
            # The first character may itself be a space where a vocabulary is not byte-level.
            left, _, right = merge[1:].partition(" ")
            merges.append((merge[:1] + left, right))
        return merges


def _byte_level(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    rules = pre_tokenization(vocabulary.get("pre", str, "default"))
    tokenizer = Tokenizer(_bpe(vocabulary.ids, vocabulary.merges(), ignore_merges=rules.ignore_merges))
    if rules.normalizer is not None:
        tokenizer.normalizer = rules.normalizer
    tokenizer.pre_tokenizer = rules.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rules.add_bos


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    add_prefix = vocabulary.get("add_space_prefix", bool, True)
    merges = vocabulary.merges() if vocabulary.has_merges() else _merges_from_scores(vocabulary)
    tokenizer = Tokenizer(
        _bpe(
            vocabulary.ids,
            merges,
            unk_token=vocabulary.special("unknown"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="first" if add_prefix else "never", split=False
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _bpe(ids: Mapping[str, int], merges: Sequence[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab=dict(ids), merges=list(merges), **options)
    except Exception as error:  # the library raises bare Exception
        raise CorruptWeights(f"the GGUF file's merges do not fit its vocabulary: {error}") from error


def _merges_from_scores(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """The merges that SentencePiece's BPE implies.

    It joins the two neighbours whose joined text has the best score.  So every way to cut a piece into
    two pieces is a merge, in the order of the whole's score; among equals the longer left half comes
    first, then the longer right half, then the order of the vocabulary (as transformers' conversion has
    it).  Only pieces that text is made of take part.
    """
    scores = vocabulary.per_token("scores")
    if not scores:
        raise CorruptWeights("the GGUF file has neither tokenizer.ggml.merges nor tokenizer.ggml.scores")
    text_types = (_TokenType.NORMAL, _TokenType.USER_DEFINED)
    ids = {
        token: token_id
        for token, token_id in vocabulary.ids.items()
        if vocabulary.types[token_id] in text_types
    }
    merges = []
    for token, token_id in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                merges.append(((-scores[token_id], -len(left), -len(right), token_id), (left, right)))
    merges.sort()
    return [merge for _, merge in merges]


def _add_tokens(tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    """Tokens that are found whole in a text: special ones, and those that the model's makers defined."""
    special = {vocabulary.special(name) for name in _SPECIAL_NAMES} - {None}
    special |= {
        token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in (_TokenType.CONTROL, _TokenType.UNKNOWN)
    }
    defined = [
        token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind == _TokenType.USER_DEFINED and token not in special
    ]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in vocabulary.tokens if token in special]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in defined])


def _add_template(tokenizer: Tokenizer, vocabulary: _Vocabulary, *, add_bos: bool) -> None:
    """BOS and EOS around a text, as the file asks for; `add_bos` holds where it does not say."""
    bos = vocabulary.special("bos") if vocabulary.get("add_bos_token", bool, add_bos) else None
    eos = vocabulary.special("eos") if vocabulary.get("add_eos_token", bool, False) else None
    template = [token for token in (bos, "$A", eos) if token is not None]
    if len(template) > 1:
        special = {(token, vocabulary.ids[token]) for token in (bos, eos) if token is not None}
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=sorted(special)
        )
