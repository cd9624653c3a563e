"""A directory in Hugging Face layout: config.json beside one or several safetensors files.

Files are memory-mapped by the `safetensors` library, which checks that a header fits its file; this module
checks that index, files and configuration fit each other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from aioinfer.errors import CorruptWeights, ModelError, ModelNotFound, UnsupportedModel
from aioinfer.models.weights.checkpoint import Checkpoint, check_layers
from aioinfer.models.weights.config_json import parse_config
from aioinfer.models.weights.fields import Fields, exists, read_json
from aioinfer.models.weights.text_files import read_text_assets

if TYPE_CHECKING:
    from pathlib import Path

    import torch

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DTYPE_NAMES = {"F64": "float32", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}

_HUB_CACHE_DIR = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")
# A constant that transformers used to save with the weights.
_NOT_WEIGHTS = re.compile(r".*\.rotary_emb\.inv_freq")


class SafetensorsCheckpoint(Checkpoint):
    """A checkpoint of safetensors files.

    Raises:
        ModelNotFound: the directory holds no model.
        CorruptWeights: a file is damaged or missing, or they contradict each other.
        UnsupportedModel: the architecture, or an option of it, is not known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = _display_name(path)
        config_path = path / CONFIG_FILE
        if not exists(config_path):
            raise ModelNotFound(f"{path} holds no model: it has no {CONFIG_FILE} ({_what_is_there(path)})")
        values = read_json(config_path)
        # The tensors of a file are found by their names: tensor name -> the open file that has it.
        self._files = _open_files(path)
        self.config = parse_config(values, config_path, stored_dtype=self._stored_dtype())
        check_layers(self.names(), self.config.num_layers, path)
        self.text = read_text_assets(path, Fields(values, config_path))

    def names(self) -> frozenset[str]:
        return frozenset(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def tensor(self, name: str) -> torch.Tensor:
        stored = self._slice(name).get_dtype()
        if stored not in DTYPE_NAMES:
            raise UnsupportedModel(
                f"{self.path}: tensor {name} is stored as {stored}; {', '.join(DTYPE_NAMES)} are supported"
            )
        try:
            tensor: torch.Tensor = self._files[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CorruptWeights(f"{self.path}: cannot read tensor {name}: {error}") from error
        return tensor

    def close(self) -> None:
        self._files = {}

    def _slice(self, name: str) -> Any:
        if name not in self._files:
            raise CorruptWeights(f"{self.path} has no tensor {name}")
        return self._files[name].get_slice(name)

    def _stored_dtype(self) -> str:
        """The dtype of the first matrix that has one we know."""
        for name in sorted(self._files):
            if name.endswith("proj.weight"):
                return DTYPE_NAMES.get(self._slice(name).get_dtype(), "float32")
        return "float32"


def _display_name(path: Path) -> str:
    """The directory's name, or owner/name for a snapshot in a hub cache."""
    path = path.absolute()
    if path.parent.name == "snapshots" and (match := _HUB_CACHE_DIR.fullmatch(path.parent.parent.name)):
        return f"{match['owner']}/{match['name']}"
    return path.name


def _what_is_there(path: Path) -> str:
    """What to say about a directory without the expected files."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        return f"it cannot be listed: {error.strerror}"
    if ggufs := [name for name in names if name.endswith(".gguf")]:
        return f"to use a .gguf file, pass its own path: {path / ggufs[0]}"
    return f"found: {', '.join(names[:10]) or 'nothing'}"


def _open_files(path: Path) -> dict[str, Any]:
    if exists(path / SINGLE_FILE):
        file = _open(path / SINGLE_FILE)
        return {name: file for name in file.keys() if not _NOT_WEIGHTS.fullmatch(name)}  # noqa: SIM118
    if exists(path / INDEX_FILE):
        return _open_shards(path)
    if any(path.glob("*.bin")) or any(path.glob("*.pt*")):
        raise UnsupportedModel(
            f"{path} has its weights in pickle files only, which could run any code and are never read; "
            f"convert them to {SINGLE_FILE}"
        )
    raise ModelNotFound(
        f"{path} holds no weights: neither {SINGLE_FILE} nor {INDEX_FILE} is there ({_what_is_there(path)})"
    )


def _open_shards(path: Path) -> dict[str, Any]:
    index_path = path / INDEX_FILE
    weight_map = Fields(read_json(index_path), index_path).section("weight_map")
    if weight_map is None:
        raise CorruptWeights(f"{index_path} has no weight_map")
    shards: dict[str, Any] = {}
    files: dict[str, Any] = {}
    for name in weight_map.values:
        shard_name = weight_map.string(name)
        # An index is data: it names files beside itself and nothing else.
        if not shard_name or shard_name in (".", "..") or "/" in shard_name or "\\" in shard_name:
            raise CorruptWeights(f"{index_path}: {name} must name a file beside it, found {shard_name!r}")
        if shard_name not in shards:
            file = _open(path / shard_name)
            shards[shard_name] = (file, frozenset(file.keys()))
        file, held = shards[shard_name]
        if name not in held:
            raise CorruptWeights(
                f"{path / shard_name} has no tensor {name}, which {INDEX_FILE} looks for there"
            )
        if not _NOT_WEIGHTS.fullmatch(name):
            files[name] = file
    return files


def _open(path: Path) -> Any:
    """Map one file; the library has no types."""
    if not exists(path):
        raise CorruptWeights(f"weights file {path} is missing")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise CorruptWeights(f"{path} is damaged or cut short: {error}") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error}") from error
