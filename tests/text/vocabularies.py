"""Small vocabularies made in memory, as the metadata of a GGUF file, and texts to try them on."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from aioinfer.text.detokenizer import byte_alphabet

CORPUS = (
    "The quick brown fox jumps over the lazy dog. The five boxing wizards jump quickly. ",
    "def main(argv: list[str]) -> int:\n    return 0 if argv else 1\n",
    "Grüße aus Köln, ça va? 12345 67 890. 你好，世界！ Привет, мир. ",
    "the the the then there these those this that thing things think thinking ",
)
SPECIAL = ("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")


def texts() -> st.SearchStrategy[str]:
    """Strings of every kind that a tokenizer treats in its own way."""
    pieces = st.one_of(
        st.sampled_from(
            [*SPECIAL, *CORPUS, "<0x41>", "▁", " ", "\n\n", "\r\n", "\t", "def f(x):\n    return x"]
        ),
        st.sampled_from(["🌶", "👩‍👩‍👧", "e\u0301", "é", "ﷺ", "\u200b", "\ufffd", "\0", "１２", "½", "٣"]),
        st.integers(0, 10**9).map(str),
        st.integers(1, 20).map(lambda n: " " * n),
        st.text(max_size=20),
    )
    return st.lists(pieces, max_size=8).map("".join)


def byte_level_metadata(pre: str = "gpt-2", **keys: Any) -> dict[str, Any]:
    """The 256 bytes and a few merges; control tokens <s> and </s>."""
    merges = ["t h", "th e", "Ġ the", "Ġ Ġ", "i n", "Ċ Ċ"]
    tokens = [*byte_alphabet(), *(merge.replace(" ", "") for merge in merges), "<s>", "</s>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [3, 3],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def sentencepiece_metadata(**keys: Any) -> dict[str, Any]:
    """As SentencePiece lays a BPE vocabulary out: control tokens, bytes, pieces by rank, characters."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    learned = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    pieces = [piece for piece in learned if len(piece) > 1] + [piece for piece in learned if len(piece) == 1]
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*head, *pieces, "<tool>", "<|im_end|>"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [
            *([0.0] * len(head)),
            *(-float(rank) for rank in range(len(pieces))),
            *(-1000.0, 0.0),
        ],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4, 3],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }
