"""A .gguf file, or the first of a split one, as a checkpoint.

Translates what llama.cpp's conversion did back into Hugging Face's terms: tensor names, metadata keys, and
the order of the rows of the query and key projections, which the conversion interleaves for its own rotary
embedding.  Rows are put back while they are still blocks, so that quantised blocks can be handed out as they
are, too.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from aioinfer.errors import CorruptWeights, UnsupportedModel
from aioinfer.models.weights.checkpoint import Checkpoint, check_layers, check_shape
from aioinfer.models.weights.fields import exists
from aioinfer.models.weights.gguf_file import GGUFFile, TensorInfo
from aioinfer.models.weights.gguf_metadata import ROPE_FACTORS, read_config, read_text_assets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

    from aioinfer.models.interface import ModelConfig

# Elements expanded at a time: numpy's temporaries stay in the cache and small beside the result, and the
# interpreter is free for other threads many times a second.  Measured: half and twice as many are slower.
EXPAND_ELEMENTS = 2**17

_FLOAT_TYPES = {
    GGMLQuantizationType.F64: (np.float64, torch.float64),
    GGMLQuantizationType.F32: (np.float32, torch.float32),
    GGMLQuantizationType.F16: (np.float16, torch.float16),
    GGMLQuantizationType.BF16: (np.int16, torch.bfloat16),
}
_DTYPE_NAMES = {GGMLQuantizationType.F16: "float16", GGMLQuantizationType.BF16: "bfloat16"}
_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_BLOCK_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How llama.cpp's conversion stores one family.

    Attributes:
        architecture: Hugging Face's class name.
        outer: tensors outside the layers, without their suffix.
        layer: tensors of a layer.
        interleaved: of those, the ones whose rows the conversion interleaves -> the attribute of the
            configuration with their number of heads.
    """

    architecture: str
    outer: Mapping[str, str]
    layer: Mapping[str, str]
    interleaved: Mapping[str, str]


LLAMA = Family(
    architecture="LlamaForCausalLM",
    outer={
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
    },
    layer={
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
    interleaved={"self_attn.q_proj": "num_heads", "self_attn.k_proj": "num_kv_heads"},
)
FAMILIES = {"llama": LLAMA}


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a tensor is: the file, and the heads whose rows are interleaved in it (0 for none)."""

    file: GGUFFile
    info: TensorInfo
    num_interleaved_heads: int


class GGUFCheckpoint(Checkpoint):
    """A checkpoint in one .gguf file, or in several that belong together.

    Raises:
        ModelNotFound, CorruptWeights, UnsupportedModel, ModelError: as `open_checkpoint`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        files = _open_parts(path)
        metadata = files[0].metadata
        family = _family(metadata, path)
        tensors = _by_gguf_name(files)
        _check_types(tensors, path)
        self.config = read_config(
            metadata,
            architecture=family.architecture,
            shapes={name: info.shape for name, (_, info) in tensors.items()},
            rope_factors=_rope_factors(tensors),
            dtype=_dtype(tensors),
            path=path,
        )
        self._tensors = _by_canonical_name(tensors, family, self.config, path)
        check_layers(self.names(), self.config.num_layers, path)
        self.text = read_text_assets(metadata, self.config.vocab_size, path)

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored(name).info.shape

    def tensor(self, name: str) -> torch.Tensor:
        stored = self._stored(name)
        return _expand(self._rows(stored), stored.info.type).reshape(stored.info.shape)

    def close(self) -> None:
        self._tensors = {}

    def _stored(self, name: str) -> _Stored:
        if name not in self._tensors:
            raise CorruptWeights(f"{self.path} has no tensor {name}")
        return self._tensors[name]

    def _rows(self, stored: _Stored) -> npt.NDArray[np.uint8]:
        """The stored blocks, [rows, bytes per row], in Hugging Face's order of rows."""
        blocks = stored.file.blocks(stored.info)
        if not stored.num_interleaved_heads:
            return blocks
        return _deinterleave(blocks, stored.info, stored.num_interleaved_heads)


def _deinterleave(blocks: npt.NDArray[np.uint8], info: TensorInfo, num_heads: int) -> npt.NDArray[np.uint8]:
    """Undo the conversion's reordering of rows, per head: pairs (i, i + D/2) had been put side by side."""
    num_rows = info.shape[0]
    pairs = blocks.reshape(num_heads, num_rows // num_heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(blocks.shape)


def _expand(blocks: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> torch.Tensor:
    """Blocks to floats: a view for float types, float32 for quantised ones.  The shape is the caller's."""
    if kind in _FLOAT_TYPES:
        numpy_type, torch_type = _FLOAT_TYPES[kind]
        # A file may be aligned to less than its numbers.
        values = np.require(blocks.view(numpy_type), requirements="A")
        return torch.from_numpy(values).view(torch_type)
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    stored = blocks.reshape(-1, block_bytes)
    expanded = np.empty((len(stored), block_size), np.float32)
    step = EXPAND_ELEMENTS // block_size
    for start in range(0, len(stored), step):
        part = slice(start, start + step)
        # Blocks do not depend on each other: as one long row they are expanded in one go.
        expanded[part] = dequantize(stored[part].reshape(1, -1), kind).reshape(-1, block_size)
    return torch.from_numpy(expanded)


def _open_parts(path: Path) -> list[GGUFFile]:
    """The file, and the others if it is the first of a split one."""
    first = GGUFFile(path)
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return [first]
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise UnsupportedModel(
            f"{path} is one of {count} parts; their names must end in -00001-of-{count:05}.gguf"
        )
    if int(match["number"]) != 1:
        raise UnsupportedModel(
            f"{path} is not the first part; pass {_part(path, match['stem'], 1, count).name}"
        )
    return [first] + [GGUFFile(_part(path, match["stem"], number, count)) for number in range(2, count + 1)]


def _part(path: Path, stem: str, number: int, count: int) -> Path:
    part = path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf")
    if not exists(part):
        raise CorruptWeights(f"{path} is one of {count} parts, but {part.name} is missing")
    return part


def _family(metadata: Mapping[str, Any], path: Path) -> Family:
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CorruptWeights(f"{path} has no general.architecture")
    if name not in FAMILIES:
        raise UnsupportedModel(
            f"{path}: GGUF architecture {name!r} is not supported; {', '.join(FAMILIES)} is"
        )
    return FAMILIES[name]


def _by_gguf_name(files: list[GGUFFile]) -> dict[str, tuple[GGUFFile, TensorInfo]]:
    tensors: dict[str, tuple[GGUFFile, TensorInfo]] = {}
    for file in files:
        for name, info in file.tensors.items():
            if name in tensors:
                raise CorruptWeights(f"{file.path}: tensor {name} is in another part already")
            tensors[name] = (file, info)
    return tensors


def _check_types(tensors: Mapping[str, tuple[GGUFFile, TensorInfo]], path: Path) -> None:
    """Refuse a file with a type that cannot be expanded now, not in the middle of loading."""
    for kind in {info.type for _, info in tensors.values()}:
        if not _can_expand(kind):
            known = ", ".join(kind.name for kind in GGMLQuantizationType if _can_expand(kind))
            raise UnsupportedModel(f"{path}: tensor type {kind.name} is not supported; {known} are")


def _can_expand(kind: GGMLQuantizationType) -> bool:
    if kind in _FLOAT_TYPES:
        return True
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _dtype(tensors: Mapping[str, tuple[GGUFFile, TensorInfo]]) -> str:
    """The float type of most of the weights; what is quantised is expanded to float32."""
    sizes: Counter[GGMLQuantizationType] = Counter()
    for _, info in tensors.values():
        sizes[info.type] += info.size_bytes
    return _DTYPE_NAMES.get(max(sizes, key=sizes.__getitem__, default=GGMLQuantizationType.F32), "float32")


def _rope_factors(tensors: Mapping[str, tuple[GGUFFile, TensorInfo]]) -> tuple[float, ...]:
    if ROPE_FACTORS not in tensors:
        return ()
    file, info = tensors[ROPE_FACTORS]
    return tuple(_expand(file.blocks(info), info.type).flatten().tolist())


def _by_canonical_name(
    tensors: Mapping[str, tuple[GGUFFile, TensorInfo]], family: Family, config: ModelConfig, path: Path
) -> dict[str, _Stored]:
    stored: dict[str, _Stored] = {}
    for name, (file, info) in tensors.items():
        if name == ROPE_FACTORS:
            continue
        canonical, module = _canonical(name, family, path)
        num_heads = 0
        if module in family.interleaved:
            num_heads = getattr(config, family.interleaved[module])
            _check_interleaved(canonical, info, num_heads * config.head_dim)
        stored[canonical] = _Stored(file, info, num_heads)
    return stored


def _canonical(name: str, family: Family, path: Path) -> tuple[str, str]:
    """Hugging Face's name of a tensor, and the module in its layer."""
    if match := _BLOCK_NAME.fullmatch(name):
        layer, module, kind = match.groups()
        if module in family.layer:
            return f"model.layers.{int(layer)}.{family.layer[module]}.{kind}", family.layer[module]
    module, _, kind = name.rpartition(".")
    if module in family.outer and kind in ("weight", "bias"):
        return f"{family.outer[module]}.{kind}", family.outer[module]
    raise UnsupportedModel(f"{path}: tensor {name!r} has no place in {family.architecture}")


def _check_interleaved(name: str, info: TensorInfo, num_rows: int) -> None:
    check_shape(name, (num_rows, *info.shape[1:]), info.shape)
    # The rows of a vector are its elements, and those of a quantised one cannot be moved.
    if len(info.shape) == 1 and GGML_QUANT_SIZES[info.type][0] != 1:
        raise UnsupportedModel(
            f"tensor {name} is a vector stored as {info.type.name}, which is not supported"
        )
