"""Tokenizers that several text tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from aioinfer.text.tokenizer import Tokenizer, load_tokenizer
from aioinfer.types import TextAssets
from tests.text.vocabularies import byte_level_metadata, sentencepiece_metadata

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def gguf_metadata(default_model_path: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(default_model_path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}


@pytest.fixture(scope="session")
def smollm(gguf_metadata: dict[str, Any]) -> Tokenizer:
    return load_tokenizer(TextAssets(gguf_metadata=gguf_metadata, eos_token_ids=(2,)))


@pytest.fixture(scope="session")
def hf_smollm(default_model_path: Path) -> PreTrainedTokenizerFast:
    """transformers' tokenizer for the same file."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(
        default_model_path.parent, gguf_file=default_model_path.name
    )
    return tokenizer  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def published_smollm(hf_smollm: PreTrainedTokenizerFast) -> Backend:
    """The same, with the pre-tokenizer that SmolLM2 was trained with and its tokenizer.json has.

    transformers' GGUF conversion does not know the name `smollm` and falls back to GPT-2's, which does not
    cut digits apart; the two differ where white space comes before a digit.
    """
    backend = Backend.from_str(hf_smollm.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return load_tokenizer(TextAssets(gguf_metadata=byte_level_metadata()))


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return load_tokenizer(TextAssets(gguf_metadata=sentencepiece_metadata()))
