"""Which class builds which architecture.  A new family is one file, one line here, one parity test."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aioinfer.errors import UnsupportedModel

if TYPE_CHECKING:
    from aioinfer.models.interface import ModelConfig

ARCHITECTURES = {
    "LlamaForCausalLM": "aioinfer.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "aioinfer.models.llama:LlamaForCausalLM",
}


def model_class(config: ModelConfig) -> Any:
    """The class of an architecture.

    Raises:
        UnsupportedModel: it is not known.
    """
    try:
        module, _, name = ARCHITECTURES[config.architecture].partition(":")
    except KeyError:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(
            f"architecture {config.architecture!r} is not supported; supported are: {known}"
        ) from None
    return getattr(import_module(module), name)
