from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import pytest
from hypothesis import example, given, settings

from aioinfer.errors import CorruptWeights, UnsupportedModel
from aioinfer.text.tokenizer import Tokenizer, load_tokenizer
from aioinfer.types import TextAssets
from tests.text.vocabularies import byte_level_metadata, sentencepiece_metadata, texts

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast


def load(metadata: dict[str, Any], **assets: Any) -> Tokenizer:
    return load_tokenizer(TextAssets(gguf_metadata=metadata, **assets))


def without(metadata: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name != f"tokenizer.ggml.{key}"}


@pytest.fixture(scope="module")
def hf_sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    """transformers' tokenizer for a GGUF file with the same vocabulary."""
    from transformers import AutoTokenizer

    folder: Path = tmp_path_factory.mktemp("sentencepiece")
    metadata = sentencepiece_metadata()
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(metadata["tokenizer.ggml.tokens"]))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_scores(metadata["tokenizer.ggml.scores"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
    return tokenizer  # type: ignore[no-any-return]


@settings(deadline=None, max_examples=300)
@given(text=texts())
@example("Steps:\n\n1. Mix 250 g.\n    12\n\t3")
def test_smollm_equals_the_published_tokenizer(
    smollm: Tokenizer, published_smollm: Backend, text: str
) -> None:
    assert smollm.encode(text) == published_smollm.encode(text).ids


@settings(deadline=None, max_examples=300)
@given(text=texts())
def test_smollm_equals_transformers_on_the_same_file(
    smollm: Tokenizer, hf_smollm: PreTrainedTokenizerFast, text: str
) -> None:
    """Numbers apart: see `published_smollm`."""
    text = "".join(char for char in text if not char.isnumeric())
    assert smollm.encode(text) == hf_smollm.encode(text)
    assert smollm.vocab_size == len(hf_smollm)


@settings(deadline=None, max_examples=300)
@given(text=texts())
@example(" leading and  double spaces ")
@example("<s> text</s>after<tool>x")
@example("\u2581mark")
def test_sentencepiece_equals_transformers(
    sentencepiece: Tokenizer, hf_sentencepiece: PreTrainedTokenizerFast, text: str
) -> None:
    assert sentencepiece.encode(text) == hf_sentencepiece.encode(text)
    token_ids = sentencepiece.encode(text, add_special_tokens=False)
    assert sentencepiece.decode(token_ids) == hf_sentencepiece.decode(token_ids, skip_special_tokens=True)


def test_sentencepiece_joins_the_best_scored_pieces() -> None:
    tokens = ["<unk>", "a", "b", "c", "ab", "bc", "abc", "▁"]
    metadata = sentencepiece_metadata(
        tokens=tokens, token_type=[2, *[1] * 7], scores=[0, -9, -9, -9, -2, -1, -3, -9]
    )
    tokenizer = load(without(without(metadata, "bos_token_id"), "eos_token_id"), add_bos=False)
    assert tokenizer.encode("abc") == [7, 6]  # ▁ and abc, through bc
    assert tokenizer.encode("ab") == [7, 4]


def test_sentencepiece_without_bytes_has_the_unknown_token() -> None:
    metadata = sentencepiece_metadata(tokens=["<unk>", "a", "▁"], token_type=[2, 1, 1], scores=[0, -1, -2])
    tokenizer = load(without(without(metadata, "bos_token_id"), "eos_token_id"))
    assert tokenizer.encode("aßa") == [2, 1, 0, 1]


@pytest.mark.parametrize("prefix", [True, False])
def test_space_prefix(prefix: bool) -> None:
    tokenizer = load(sentencepiece_metadata(add_space_prefix=prefix))
    tokens = sentencepiece_metadata()["tokenizer.ggml.tokens"]
    token_ids = tokenizer.encode("the", add_special_tokens=False)
    assert tokens[token_ids[0]].startswith("▁") == prefix
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    # With a prefix, one space at the start of a text is the prefix, as transformers has it.
    assert tokenizer.decode(tokenizer.encode("  the")) == ("" if prefix else " ") + " the"
    # In the middle of a text, no space is taken away.
    prompt = tokenizer.encode("fox")
    assert tokenizer.detokenizer(prompt).push(load(sentencepiece_metadata()).encode("the")) == " the"


def test_the_first_space_after_special_tokens_only_is_the_prefix(sentencepiece: Tokenizer) -> None:
    token_ids = sentencepiece.encode("the", add_special_tokens=False)
    assert sentencepiece.detokenizer([1]).push(token_ids) == "the"
    assert sentencepiece.detokenizer([1], skip_special_tokens=False).push(token_ids) == " the"


@pytest.mark.parametrize(
    ("metadata", "bos", "eos"),
    [
        (byte_level_metadata(), False, False),
        (byte_level_metadata(add_bos_token=True), True, False),
        (byte_level_metadata(add_bos_token=True, add_eos_token=True), True, True),
        (byte_level_metadata("llama-bpe"), True, False),
        (byte_level_metadata("tekken"), True, False),
        (byte_level_metadata("llama-bpe", add_bos_token=False), False, False),
        (sentencepiece_metadata(), True, False),
        (sentencepiece_metadata(add_bos_token=False, add_eos_token=True), False, True),
    ],
)
def test_bos_and_eos_as_the_file_says(metadata: dict[str, Any], bos: bool, eos: bool) -> None:
    tokenizer = load(metadata)
    plain = tokenizer.encode("the", add_special_tokens=False)
    first = [metadata["tokenizer.ggml.bos_token_id"]] * bos
    last = [metadata["tokenizer.ggml.eos_token_id"]] * eos
    assert tokenizer.encode("the") == first + plain + last
    assert tokenizer.bos_token_id == metadata["tokenizer.ggml.bos_token_id"]
    assert load(metadata, add_bos=True).encode("the")[:1] == [tokenizer.bos_token_id]
    assert load(metadata, add_bos=False).encode("the") == plain + last


def test_whole_pieces_win_over_merges_where_the_family_has_it_so() -> None:
    metadata = byte_level_metadata("llama-bpe", add_bos_token=False)
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[0], whole = "xyz", 0  # reachable by no merge
    assert load(metadata).encode("xyz") == [whole]
    assert whole not in load({**metadata, "tokenizer.ggml.pre": "qwen2"}).encode("xyz")


def test_control_and_user_defined_tokens_are_found_whole() -> None:
    metadata = byte_level_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    tokens += ["<think>", "    ", "[PAD0]"]
    types += [4, 4, 5]
    tokenizer = load(metadata)
    think, spaces = tokens.index("<think>"), tokens.index("    ")
    assert tokenizer.encode("<s><think>    ")[1:] == [think, spaces]
    assert tokenizer.decode([think, spaces, tokens.index("<s>")]) == "<think>    "
    assert tokens.index("[PAD0]") not in tokenizer.encode("[PAD0]")


def test_eos_is_special_even_if_its_type_says_otherwise() -> None:
    metadata = byte_level_metadata(token_type=[1] * len(byte_level_metadata()["tokenizer.ggml.tokens"]))
    eos = metadata["tokenizer.ggml.eos_token_id"]
    assert load(metadata).encode("</s>") == [eos]
    assert load(metadata).decode([eos]) == ""


def test_a_file_without_a_pre_tokenizers_name_has_gpt2s() -> None:
    text = "the  123 don't"
    assert load(without(byte_level_metadata(), "pre")).encode(text) == load(byte_level_metadata()).encode(
        text
    )


@pytest.mark.parametrize(
    ("metadata", "error", "words"),
    [
        (byte_level_metadata("wonderful"), UnsupportedModel, "wonderful.*known are: .*smollm"),
        (byte_level_metadata(model="rwkv"), UnsupportedModel, "rwkv.*gpt2.*llama"),
        (without(byte_level_metadata(), "tokens"), CorruptWeights, "tokenizer.ggml.tokens"),
        (without(byte_level_metadata(), "model"), CorruptWeights, "tokenizer.ggml.model"),
        (without(byte_level_metadata(), "merges"), CorruptWeights, "tokenizer.ggml.merges"),
        (byte_level_metadata(merges=["q qq"]), CorruptWeights, "merges"),
        (byte_level_metadata(merges=[""]), CorruptWeights, "merges"),
        (byte_level_metadata(tokens=["a", "a"]), CorruptWeights, "twice"),
        (byte_level_metadata(token_type=[1, 1]), CorruptWeights, "token_type"),
        (byte_level_metadata(bos_token_id=10**6), CorruptWeights, "bos_token_id"),
        (byte_level_metadata(add_bos_token="yes"), CorruptWeights, "add_bos_token"),
        (without(sentencepiece_metadata(), "scores"), CorruptWeights, "scores"),
        (sentencepiece_metadata(scores=[1.0]), CorruptWeights, "scores"),
    ],
)
def test_what_cannot_be_used_is_refused(metadata: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        load(metadata)
