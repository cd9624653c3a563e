from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from aioinfer.errors import UnsupportedModel
from aioinfer.text.detokenizer import Detokenizer, TokenBytes, byte_alphabet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from aioinfer.text.tokenizer import Tokenizer

SENTENCEPIECE = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
CHILI = list("🌶".encode())


def description(decoder: decoders.Decoder) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(decoder.__getstate__())
    return value


def byte_tokens(decoder: dict[str, Any] | None = None) -> TokenBytes:
    """Token n is byte n; 256 is `!`, 257 a special token."""
    tokens = {n: f"<0x{n:02X}>" for n in range(256)} | {256: "!", 257: "<s>"}
    return TokenBytes(tokens, {257}, decoder or description(SENTENCEPIECE))


def push_each(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [detokenizer.push([token_id]) for token_id in token_ids]


def test_b01_a_character_comes_whole(byte_level: Tokenizer) -> None:
    token_ids = byte_level.encode("🌶!")
    assert len(token_ids) == 7 - 2
    assert push_each(byte_level.detokenizer(), token_ids) == ["", "", "", "🌶", "!"]


def test_b01_with_byte_fallback() -> None:
    assert push_each(Detokenizer(byte_tokens()), [*CHILI, 256]) == ["", "", "", "🌶", "!"]


def test_an_end_inside_a_character_shows_once() -> None:
    detokenizer = Detokenizer(byte_tokens())
    assert push_each(detokenizer, [256, *CHILI[:3]]) == ["!", "", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_a_prompt_that_ends_inside_a_character_is_not_repeated(num_bytes: int) -> None:
    prompt, rest = [*b"A long prompt", *CHILI[:num_bytes]], CHILI[num_bytes:]
    # completed by the generation
    detokenizer = Detokenizer(byte_tokens(), prompt)
    assert "".join(push_each(detokenizer, [*rest, 256])) == "🌶!"
    # not taken up by the generation: the broken character is the prompt's
    assert Detokenizer(byte_tokens(), prompt).push([256]) == "!"
    assert Detokenizer(byte_tokens(), prompt).flush() == ""
    # taken up and broken off
    if len(rest) > 1:
        detokenizer = Detokenizer(byte_tokens(), prompt)
        assert detokenizer.push(rest[:1]) + detokenizer.flush() == "\ufffd"
        assert Detokenizer(byte_tokens(), prompt).push([*rest[:1], 256]) == "\ufffd!"


@given(prompt=st.binary(max_size=6), generated=st.binary(max_size=8))
def test_any_bytes_after_any_prompt(prompt: bytes, generated: bytes) -> None:
    detokenizer = Detokenizer(byte_tokens(), [*b"x", *prompt])
    text = "".join(push_each(detokenizer, list(generated))) + detokenizer.flush()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(prompt)
    begun = decoder.getstate()[0]
    assert text == ((begun if takes_up(begun, generated) else b"") + generated).decode(errors="replace")
    assert detokenizer.flush() == ""


def takes_up(begun: bytes, generated: bytes) -> bool:
    """Whether the first byte generated can belong to the character that the prompt began."""
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(begun + generated[:1])
    except UnicodeDecodeError:
        return False
    return bool(generated)


def test_endless_invalid_bytes_are_neither_held_nor_lost() -> None:
    detokenizer = Detokenizer(byte_tokens())
    assert push_each(detokenizer, [0xFF] * 10_000) == ["\ufffd"] * 10_000
    halves = push_each(detokenizer, [0xE4, 0x80] * 5_000)
    assert all("".join(halves[n : n + 4]) for n in range(len(halves) - 4))


def test_characters_among_invalid_bytes_stay() -> None:
    detokenizer = Detokenizer(byte_tokens())
    assert "".join(push_each(detokenizer, [*"é".encode(), 0xFF, *"é".encode(), 256])) == "é\ufffdé!"


def test_special_tokens_are_left_out_on_request() -> None:
    assert Detokenizer(byte_tokens()).push([256, 257, 256]) == "!!"
    assert Detokenizer(byte_tokens(), skip_special_tokens=False).push([256, 257, 256]) == "!<s>!"


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    assert Detokenizer(byte_tokens()).push([256, 99_999, 256]) == "!!"


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.ByteLevel(),
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.Metaspace(prepend_scheme="first", replacement="_"),
        decoders.Fuse(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        SENTENCEPIECE,
    ],
    ids=str,
)
@given(token_ids=st.lists(st.integers(0, 11), max_size=12), cuts=st.data())
def test_decoders_as_the_library_has_them(
    decoder: decoders.Decoder | None, token_ids: list[int], cuts: st.DataObject
) -> None:
    vocabulary = ["▁", "▁▁", "▁a", "a▁b", " ", "a", "Ġ", "Ġa", "ä", "<0x41>", "_", "_ b"]
    tokens = [vocabulary[token_id] for token_id in token_ids]
    expected = " ".join(tokens) if decoder is None else decoder.decode(tokens)
    token_bytes = TokenBytes(
        dict(enumerate(vocabulary)), (), None if decoder is None else description(decoder)
    )
    detokenizer, text, rest = Detokenizer(token_bytes), "", token_ids
    while rest:
        cut = cuts.draw(st.integers(1, len(rest)))
        text += detokenizer.push(rest[:cut])
        rest = rest[cut:]
    assert text + detokenizer.flush() == expected


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Metaspace()]),
    ],
    ids=str,
)
def test_other_decoders_are_refused(decoder: decoders.Decoder) -> None:
    with pytest.raises(UnsupportedModel, match="supported are ByteLevel"):
        TokenBytes({0: "a"}, (), description(decoder))


def test_the_byte_alphabet_is_the_librarys() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    for char, byte in alphabet.items():
        if byte < 0x80:
            assert decoders.ByteLevel().decode([char]) == chr(byte)


@settings(deadline=None)
@given(token_ids=st.lists(st.integers(0, 49_151), max_size=30), skip=st.booleans(), cuts=st.data())
def test_random_tokens_of_a_real_vocabulary(
    smollm: Tokenizer,
    hf_smollm: PreTrainedTokenizerFast,
    token_ids: list[int],
    skip: bool,
    cuts: st.DataObject,
) -> None:
    """Mostly invalid UTF-8, and special tokens: the joined deltas are the library's text of the whole."""
    num_prompt = cuts.draw(st.integers(0, len(token_ids)))
    prompt, rest = token_ids[:num_prompt], token_ids[num_prompt:]
    expected = hf_smollm.backend_tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert smollm.decode(token_ids, skip_special_tokens=skip) == expected

    detokenizer, text = smollm.detokenizer(prompt, skip_special_tokens=skip), ""
    while rest:
        cut = cuts.draw(st.integers(1, len(rest)))
        text += detokenizer.push(rest[:cut])
        rest = rest[cut:]
    assert expected.endswith(text + detokenizer.flush())


@given(text=st.text(max_size=40), cut=st.integers(0, 60))
def test_a_text_cut_anywhere_is_continued_exactly(
    byte_level: Tokenizer, sentencepiece: Tokenizer, text: str, cut: int
) -> None:
    assume("\ufffd" not in text and not text.startswith(" "))
    for tokenizer in (byte_level, sentencepiece):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        detokenizer = tokenizer.detokenizer(token_ids[:cut])
        continuation = "".join(push_each(detokenizer, token_ids[cut:])) + detokenizer.flush()
        shown = tokenizer.decode(token_ids[:cut])
        whole_characters = shown.rstrip("\ufffd") if cut < len(token_ids) else shown
        assert whole_characters + continuation == text
