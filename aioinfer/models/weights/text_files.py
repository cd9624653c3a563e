"""The text side of a directory in Hugging Face layout: tokenizer, chat template, special tokens.

Reads the files and interprets as little as possible; building a tokenizer is `aioinfer.text`'s business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioinfer.errors import CorruptWeights
from aioinfer.models.weights.fields import Fields, exists, read_bytes, read_json, read_text
from aioinfer.types import TextAssets

if TYPE_CHECKING:
    from pathlib import Path

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
# Where transformers looks, in its order; a list of templates has one called default.
TEMPLATE_FILES = ("chat_template.jinja", "additional_chat_templates/default.jinja")


def read_text_assets(directory: Path, config: Fields) -> TextAssets:
    """Collect the text assets of a directory.

    Args:
        directory: where the files are; each of them may be missing.
        config: the contents of its config.json.

    Raises:
        CorruptWeights: a file is not what its name says.
        ModelError: a file cannot be read.
    """
    tokenizer_config = _optional(directory / "tokenizer_config.json")
    generation_config = _optional(directory / "generation_config.json")
    tokenizer = directory / "tokenizer.json"
    # generation_config.json comes first, as in transformers; config.json adds to it.
    eos_token_ids = generation_config.token_ids("eos_token_id") + config.token_ids("eos_token_id")
    return TextAssets(
        tokenizer_json=read_bytes(tokenizer) if exists(tokenizer) else None,
        chat_template=_chat_template(directory, tokenizer_config),
        special_tokens=_special_tokens(tokenizer_config, _optional(directory / "special_tokens_map.json")),
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
        add_bos=(
            tokenizer_config.boolean("add_bos_token", False) if "add_bos_token" in tokenizer_config else None
        ),
    )


def _optional(path: Path) -> Fields:
    return Fields(read_json(path) if exists(path) else {}, path)


def _special_tokens(*sources: Fields) -> dict[str, str]:
    """The first source that names a token wins."""
    tokens: dict[str, str] = {}
    for name in SPECIAL_TOKENS:
        for source in sources:
            if name in source and name not in tokens:
                tokens[name] = _token_text(source, name)
    return tokens


def _token_text(source: Fields, name: str) -> str:
    match source.values[name]:
        case str(text) | {"content": str(text)}:
            return text
        case found:
            raise CorruptWeights(f"{source.source}: {name} must be a string, found {found!r}")


def _chat_template(directory: Path, tokenizer_config: Fields) -> str | None:
    for name in TEMPLATE_FILES:
        if exists(directory / name):
            return read_text(directory / name)
    value: Any = tokenizer_config.values.get("chat_template")
    match value:
        case None | str():
            return value
        case list():
            return _named_template(value, tokenizer_config)
        case _:
            raise CorruptWeights(
                f"{tokenizer_config.source}: chat_template must be a string or a list of named templates"
            )


def _named_template(templates: list[Any], tokenizer_config: Fields) -> str | None:
    by_name: dict[str, str] = {}
    for template in templates:
        match template:
            case {"name": str(name), "template": str(text)}:
                by_name[name] = text
            case _:
                raise CorruptWeights(
                    f"{tokenizer_config.source}: every item of chat_template must have a name and a template"
                )
    return by_name.get("default")
