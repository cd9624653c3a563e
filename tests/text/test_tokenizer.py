from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from aioinfer.errors import InvalidRequest, PromptTooLong, UnsupportedModel
from aioinfer.text.pool import TextPool
from aioinfer.text.tokenizer import Tokenizer, load_tokenizer
from aioinfer.types import TextAssets
from tests.text.vocabularies import byte_level_metadata, texts


def tokenizer_json(*, bos: bool = False, **changes: Any) -> bytes:
    metadata = byte_level_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Backend(models.BPE({token: n for n, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokens.index("<s>"))]
        )
    return json.dumps({**json.loads(backend.to_str()), **changes}).encode()


def load(content: bytes, **assets: Any) -> Tokenizer:
    return load_tokenizer(TextAssets(tokenizer_json=content, special_tokens={"bos_token": "<s>"}, **assets))


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("add_bos", [True, False, None])
def test_add_bos_overrides_the_file(bos: bool, add_bos: bool | None) -> None:
    tokenizer = load(tokenizer_json(bos=bos), add_bos=add_bos)
    plain = tokenizer.encode("the", add_special_tokens=False)
    expected_bos = bos if add_bos is None else add_bos
    assert tokenizer.encode("the") == ([tokenizer.bos_token_id] if expected_bos else []) + plain
    assert tokenizer.encode_batch(["", "<s>"]) == [
        [tokenizer.bos_token_id] * n for n in ((1, 2) if expected_bos else (0, 1))
    ]


def test_add_bos_without_a_bos_token_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="BOS"):
        load_tokenizer(TextAssets(tokenizer_json=tokenizer_json(), add_bos=True))


def test_public_facts() -> None:
    tokenizer = load(tokenizer_json(), eos_token_ids=(263, 7))
    assert tokenizer.eos_token_ids == {7, 263}
    assert tokenizer.bos_token_id == 262
    assert tokenizer.vocab_size == 264


def test_padding_and_truncation_of_the_file_are_switched_off() -> None:
    content = tokenizer_json(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 16},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "!",
        },
    )
    assert len(load(content).encode("abcdef")) == 6


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", tokenizer_json()[:-20]])
def test_a_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json"):
        load(content)


def test_no_tokenizer_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json"):
        load_tokenizer(TextAssets())


@pytest.mark.parametrize("text", ["\ud800", "abc \udfff def", "\udc80" * 3])
def test_lone_surrogates_are_the_clients_mistake(byte_level: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate") as caught:
        byte_level.encode(text)
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequest, match=r"prompt\[1\] .*lone surrogate"):
        byte_level.encode_batch(["fine", text])


def test_a_limit_of_tokens_counts_special_ones(byte_level: Tokenizer) -> None:
    tokenizer = load(tokenizer_json(bos=True))
    assert tokenizer.encode("xyz", max_num_tokens=4) == tokenizer.encode("xyz")
    with pytest.raises(PromptTooLong, match="has 4 tokens; at most 3 fit") as caught:
        tokenizer.encode("xyz", max_num_tokens=3)
    assert caught.value.param == "prompt"
    with pytest.raises(PromptTooLong, match=r"prompt\[1\] has 4 tokens"):
        byte_level.encode_batch(["xyz", "xyzx"], max_num_tokens=3)


@pytest.mark.parametrize("text", ["1" * 1_000_000, " " * 1_000_000 + "1" * 1_000_000, "🌶" * 500_000])
def test_a_text_that_is_far_too_long_is_not_encoded_whole(
    smollm: Tokenizer, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = Tokenizer._encode

    def counting(self: Tokenizer, texts: list[str], **options: bool) -> list[tokenizers.Encoding]:
        encodings = encode(self, texts, **options)
        encoded.append(sum(map(len, encodings)))
        return encodings

    monkeypatch.setattr(Tokenizer, "_encode", counting)
    with pytest.raises(PromptTooLong, match="prompt has more than 1000 tokens") as caught:
        smollm.encode(text, max_num_tokens=1000)
    assert caught.value.param == "prompt"
    assert sum(encoded) < 30_000


@pytest.mark.parametrize(
    "text", [" " * 50_000, "word " * 10_000, "a" * 50_000, "naïve 🌶 " * 5_000, "\n" * 50_000]
)
def test_a_long_text_that_fits_is_not_refused(smollm: Tokenizer, text: str) -> None:
    token_ids = smollm.encode(text)
    assert smollm.encode(text, max_num_tokens=len(token_ids)) == token_ids
    with pytest.raises(PromptTooLong):
        smollm.encode(text, max_num_tokens=len(token_ids) - 1)


def test_what_is_no_text_is_refused(byte_level: Tokenizer) -> None:
    for wrong in (("a", "b"), b"a", None, 1):
        with pytest.raises(InvalidRequest, match="must be a string"):
            byte_level.encode_batch([wrong])  # type: ignore[list-item]


@settings(deadline=None)
@given(text=texts())
def test_text_comes_back(byte_level: Tokenizer, text: str) -> None:
    token_ids = byte_level.encode(text, add_special_tokens=False)
    assert byte_level.decode(token_ids, skip_special_tokens=False) == text


def test_many_threads_get_what_one_gets(smollm: Tokenizer) -> None:
    inputs = [f"text number {n}: " + "word " * (n % 50) for n in range(200)]
    expected = smollm.encode_batch(inputs)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(smollm.encode, inputs)) == expected
        assert list(threads.map(smollm.decode, expected)) == inputs


async def test_the_loop_runs_on_while_a_long_text_is_encoded(smollm: Tokenizer) -> None:
    """A call that held the GIL would let the loop turn only a few times until it returns."""
    text = "All work and no play makes Jack a dull boy.\n" * 9_000
    pool = TextPool(1)
    try:
        job = asyncio.create_task(pool.run(smollm.encode, text))
        turns = 0
        while not job.done():
            turns += 1
            await asyncio.sleep(0)
        assert smollm.decode(await job) == text
    finally:
        pool.close()
    assert turns > 500
