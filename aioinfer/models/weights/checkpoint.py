"""Checkpoints: a model's configuration, text assets and tensors, whatever format they are stored in.

Owns the contract between the formats (`safetensors`, `gguf`) and whoever loads a model.  Everything here
blocks on the disk: call it from a worker thread, never from an event loop.  `Checkpoint.tensor` may be called
from several threads at once.  It does not build modules, choose a dtype or know a device, and nothing is ever
unpickled.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from aioinfer.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from aioinfer.models.weights.fields import exists

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from aioinfer.models.interface import ModelConfig
    from aioinfer.types import TextAssets

_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.")


class Checkpoint(ABC):
    """An open checkpoint.  Tensors are read when asked for and outlive `close`.

    Attributes:
        path: what was opened, a directory or a file.
        name: a display name, taken from the path.
        config: architecture and sizes.
        text: tokenizer, chat template and special tokens, as they stand in the files.
    """

    path: Path
    name: str
    config: ModelConfig
    text: TextAssets

    @abstractmethod
    def names(self) -> frozenset[str]:
        """Canonical Hugging Face names, such as ``model.layers.0.self_attn.q_proj.weight``."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it.

        Raises:
            CorruptWeights: there is no such tensor.
        """

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """Read one tensor, dense and in Hugging Face layout (rotary halves, not interleaved pairs).

        Float types come as they are stored, mapped and not copied where the format allows it; quantised
        types are expanded to float32.  The mapping is private: writing to a tensor never changes the file.

        Raises:
            CorruptWeights: there is no such tensor, or it cannot be read.
            UnsupportedModel: it is stored in a type that has no float equivalent.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the files; idempotent.  Mapped memory goes with the last tensor made from it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a directory in Hugging Face layout or a ``.gguf`` file.

    Raises:
        ModelNotFound: there is nothing at `path`, or a directory without a model.
        CorruptWeights: a file is damaged, cut short or missing, or they contradict each other.
        UnsupportedModel: the format, architecture or a tensor type is not known.
        ModelError: the operating system refuses to open a file.
    """
    if not exists(path):
        raise ModelNotFound(f"{path} does not exist")
    # The formats are imported here: they import this module, and a GGUF user needs no safetensors.
    if path.is_dir():
        from aioinfer.models.weights.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    if path.suffix.lower() != ".gguf":
        raise UnsupportedModel(
            f"{path} is not a model: pass a .gguf file, or a directory with config.json and safetensors files"
        )
    from aioinfer.models.weights.gguf import GGUFCheckpoint

    return GGUFCheckpoint(path)


def check_shape(name: str, expected: Sequence[int], found: Sequence[int]) -> None:
    """Compare a tensor's shape with what the configuration asks for.

    Raises:
        CorruptWeights: they differ; the message has the name and both shapes.
    """
    if tuple(expected) != tuple(found):
        raise CorruptWeights(
            f"tensor {name} has shape {list(found)}, but the configuration asks for {list(expected)}"
        )


def check_layers(names: frozenset[str], num_layers: int, source: Path) -> None:
    """Compare the layers that have weights with the number that the configuration asks for.

    Raises:
        CorruptWeights: layers are missing.
    """
    found = {int(match[1]) for name in names if (match := _LAYER.match(name))}
    # Compared by count first: a damaged number may be too large to make a range of.
    if len(found) < num_layers or not found.issuperset(range(num_layers)):
        raise CorruptWeights(
            f"{source}: the configuration asks for {num_layers} layers, the weights have {len(found)}"
        )
