from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from aioinfer.errors import UnsupportedModel
from aioinfer.text import pretokenizers
from aioinfer.text.pretokenizers import pre_tokenization
from tests.text.vocabularies import texts

NAMES = sorted(pretokenizers._BY_NAME)
# One name for each family.
FAMILIES = sorted({id(family): name for name, family in pretokenizers._BY_NAME.items()}.values())


def pieces(name: str, text: str) -> list[str]:
    """The pieces of ASCII text, as text."""
    cut = pre_tokenization(name).pre_tokenizer().pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cut]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "a  12345", ["a", " ", " 12345"]),
        ("default", "a  12345", ["a", " ", " 12345"]),
        ("smollm", "a  12345", ["a", "  ", "1", "2", "3", "4", "5"]),
        ("starcoder", "x\n\n1.", ["x", "\n\n", "1", "."]),
        ("command-r", "a 12", ["a", " ", "1", "2"]),
        ("llama-bpe", "a  12345", ["a", " ", " ", "123", "45"]),
        ("dbrx", "12345", ["123", "45"]),
        ("qwen2", "a 123", ["a", " ", "1", "2", "3"]),
        ("deepseek-r1-qwen", "12", ["1", "2"]),
        ("deepseek-v3", "a  12345", ["a", "  ", "123", "45"]),
        ("deepseek-llm", "ab  123", ["ab", "  ", "1", "2", "3"]),
        ("deepseek-coder", "ab 123", ["ab", " ", "1", "2", "3"]),
        ("falcon", "a  12345", ["a", " ", " ", "123", "45"]),
        ("falcon", "a, b!?", ["a", ",", " b", "!?"]),
        ("gpt-4o", "helloWorld12345", ["hello", "World", "123", "45"]),
        ("tekken", "helloWorld12", ["hello", "World", "1", "2"]),
        ("gpt-2", "DON'T don't", ["DON", "'", "T", " don", "'t"]),
        ("llama-bpe", "DON'T don't", ["DON", "'T", " don", "'t"]),
        ("gpt-4o", "DON'T don't", ["DON'T", " don't"]),
        ("tekken", "don't", ["don", "'t"]),
        ("llama-bpe", "end.\n\n  next", ["end", ".\n\n", " ", " next"]),
        ("gpt-2", "end.\n\n  next", ["end", ".", "\n\n ", " next"]),
        ("llama-bpe", "/path/to", ["/path", "/to"]),
        ("gpt-4o", "a//\n/b", ["a", "//\n/", "b"]),
        ("seed-coder", "a..\nb", ["a", "..", "\n", "b"]),
        ("bailingmoe", "a\n\nb 12", ["a", "\n\n", "b", " ", "1", "2"]),
        ("bloom", "Hi, there. Yes", ["Hi", ",", " there", ".", " Yes"]),
        ("qwen35", "ab 12", ["ab", " ", "1", "2"]),
    ],
)
def test_known_cuts(name: str, text: str, expected: list[str]) -> None:
    assert pieces(name, text) == expected


def test_normalisation_is_the_familys() -> None:
    for name in NAMES:
        normalizer = pre_tokenization(name).normalizer
        composed = normalizer is not None and normalizer.normalize_str("e\u0301") == "é"
        assert composed == (name in ("qwen2", "qwen35", "command-r"))


@pytest.mark.parametrize("name", FAMILIES)
@given(text=st.one_of(texts(), st.text("ab \n\r\t1'.,!_ÀéЖ中が가١", max_size=30)))
def test_no_byte_is_lost(name: str, text: str) -> None:
    cut = pre_tokenization(name).pre_tokenizer().pre_tokenize_str(text)
    alphabet = ByteLevel.alphabet()
    joined = "".join(piece for piece, _ in cut)
    assert set(joined) <= set(alphabet)
    assert len(joined) == len(text.encode())


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UnsupportedModel, match=r"'nonsense'.*gpt-2.*llama-bpe.*smollm"):
        pre_tokenization("nonsense")
