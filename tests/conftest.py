"""Fixtures that several packages' tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aioinfer.config import DEFAULT_MODEL
from tests.tiny_llama import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file, fetched into the user's cache the way the product does it."""
    from aioinfer.models import store

    return store.locate(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama checkpoint with random weights: several shards, grouped-query attention, a chat template."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def default_model_in_transformers(default_model_path: Path) -> Any:
    """The default model in transformers, in float32: the truth for ours."""
    from tests.models.forward import transformers_model

    return transformers_model(default_model_path)
