"""The text side of a Hugging Face directory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aioinfer.errors import CorruptWeights, ModelError
from aioinfer.models.weights.fields import Fields
from aioinfer.models.weights.text_files import read_text_assets
from aioinfer.types import TextAssets

if TYPE_CHECKING:
    from pathlib import Path


def read(directory: Path, files: dict[str, Any], config: dict[str, Any] | None = None) -> TextAssets:
    """Write files (objects as JSON) and read them."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_text_assets(directory, Fields(config or {}, directory / "config.json"))


def test_nothing_there(tmp_path: Path) -> None:
    assert read(tmp_path, {}) == TextAssets()


def test_tokenizer_and_flags(tmp_path: Path) -> None:
    assets = read(tmp_path, {"tokenizer.json": "{}", "tokenizer_config.json": {"add_bos_token": False}})
    assert assets.tokenizer_json == b"{}"
    assert assets.add_bos is False


def test_end_of_text_tokens_of_both_files(tmp_path: Path) -> None:
    files = {"generation_config.json": {"eos_token_id": [5, 2]}}
    assert read(tmp_path, files, {"eos_token_id": 2}).eos_token_ids == (5, 2)
    assert read(tmp_path, files, {"eos_token_id": [7, 5]}).eos_token_ids == (5, 2, 7)
    assert read(tmp_path, {"generation_config.json": {}}, {"eos_token_id": 0}).eos_token_ids == (0,)


def test_special_tokens(tmp_path: Path) -> None:
    tokens = read(
        tmp_path,
        {
            "tokenizer_config.json": {
                "bos_token": "<s>",
                "eos_token": {"content": "</s>", "lstrip": False},
                "unk_token": None,
            },
            "special_tokens_map.json": {"bos_token": "<other>", "pad_token": "<pad>"},
        },
    ).special_tokens
    assert tokens == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def test_chat_template_in_order(tmp_path: Path) -> None:
    """In the config, as a list, and as files: what transformers prefers wins."""
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert read(tmp_path, {"tokenizer_config.json": {"chat_template": "C"}}).chat_template == "C"
    assert read(tmp_path, {"tokenizer_config.json": {"chat_template": named}}).chat_template == "D"
    assert read(tmp_path, {"tokenizer_config.json": {"chat_template": named[:1]}}).chat_template is None
    assert read(tmp_path, {"additional_chat_templates/default.jinja": "A"}).chat_template == "A"
    assert read(tmp_path, {"chat_template.jinja": "J\n"}).chat_template == "J\n"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "not JSON": ({"tokenizer_config.json": "{"}, r"tokenizer_config\.json is not valid JSON"),
    "too deep": ({"tokenizer_config.json": "[" * 100_000}, "not valid JSON"),
    "not an object": ({"generation_config.json": [1]}, r"generation_config\.json must hold a JSON object"),
    "token": ({"tokenizer_config.json": {"bos_token": 1}}, "bos_token must be a string, found 1"),
    "token id": ({"generation_config.json": {"eos_token_id": "2"}}, "eos_token_id must be a token id"),
    "token ids": ({"generation_config.json": {"eos_token_id": [2, -1]}}, "eos_token_id must be a token id"),
    "flag": ({"tokenizer_config.json": {"add_bos_token": 1}}, "add_bos_token must be true or false"),
    "template": ({"tokenizer_config.json": {"chat_template": 1}}, "chat_template must be a string or a list"),
    "templates": ({"tokenizer_config.json": {"chat_template": [1]}}, "must have a name and a template"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(tmp_path: Path, name: str) -> None:
    files, message = WRONG[name]
    with pytest.raises(CorruptWeights, match=message):
        read(tmp_path, files)


def test_not_utf8_and_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"ok \xff")
    with pytest.raises(CorruptWeights, match=r"chat_template\.jinja is not valid UTF-8: .* at byte 3"):
        read(tmp_path, {})
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(ModelError, match=r"cannot read .*tokenizer\.json"):
        read(tmp_path, {})
