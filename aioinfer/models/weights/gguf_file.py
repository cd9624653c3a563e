"""The GGUF container: header, metadata, and where each tensor's blocks lie in the mapped file.

The `gguf` package is used for what the numbers mean (types, block sizes) and not for reading: its reader
makes several arrays for every element of a metadata list, which takes seconds for a vocabulary, and trusts
the lengths in the file.  Here every length is checked against the file before it is believed.

Format: docs/gguf.md in the ggml repository.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from aioinfer.errors import CorruptWeights, ModelError, ModelNotFound, UnsupportedModel

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 2**20
MAX_DIMS = 4
MAX_ARRAY_DEPTH = 4

_BOOL, _STRING, _ARRAY = 7, 8, 9
# Value types of the format -> how `struct` calls them.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}
# The fewest bytes that an element of an array can take; bounds a length before anything is allocated.
_MIN_BYTES = {_STRING: 8, _ARRAY: 12} | {number: struct.calcsize(code) for number, code in _SCALARS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A tensor as the file describes it.

    Attributes:
        shape: slowest dimension first, as in torch (the file has them the other way round).
        offset: of its first byte in the file.
        size_bytes: of all its blocks.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    size_bytes: int


class GGUFFile:
    """One mapped file; the mapping goes with the last reference to this object or to an array made from it.

    Attributes:
        metadata: keys to plain Python values; arrays are lists.
        tensors: by GGUF's names.

    Raises:
        ModelNotFound: it does not exist.
        CorruptWeights: it is no GGUF file, damaged, or cut short.
        UnsupportedModel: its version, byte order or a tensor type is not known.
        ModelError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _map(path)
        cursor = _Cursor(self._map, path)
        num_tensors, num_keys = _read_header(cursor)
        self.metadata = _read_metadata(cursor, num_keys)
        self.tensors = _read_tensor_infos(cursor, num_tensors, self.metadata.get("general.alignment"))

    def blocks(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor, shape [rows, bytes per row], mapped and private.

        A row runs along the tensor's last dimension; a one-dimensional tensor is one row.
        """
        stored = np.frombuffer(self._map, np.uint8, info.size_bytes, info.offset)
        return stored.reshape(math.prod(info.shape[:-1]), -1)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            # Private, hence writable: torch has no read-only tensors, and the file never changes.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise ModelNotFound(f"{path} does not exist") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        raise CorruptWeights(f"{path} is empty") from None


class _Cursor:
    """A position in the mapped file that never passes its end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.size = len(data)
        self.position = 0
        self.path = path

    def damaged(self, what: str) -> CorruptWeights:
        return CorruptWeights(f"{self.path} is damaged or cut short: {what} (at byte {self.position})")

    def need(self, num_bytes: int) -> int:
        """Step over so many bytes and return where they begin."""
        start = self.position
        if num_bytes > self.size - start:
            raise self.damaged(f"{num_bytes} more bytes expected, the file has {self.size - start}")
        self.position = start + num_bytes
        return start

    def scalar(self, code: str) -> Any:
        """One little-endian number."""
        layout = struct.Struct("<" + code)
        return layout.unpack_from(self.data, self.need(layout.size))[0]

    def string(self) -> str:
        length = self.scalar("Q")
        start = self.need(length)
        return self._decode(self.data[start : start + length])

    def strings(self, count: int) -> list[str]:
        """Many strings; a vocabulary has a hundred thousand, so this is the one tight loop."""
        data, position, size = self.data, self.position, self.size
        unpack = struct.Struct("<Q").unpack_from
        items = []
        for _ in range(count):
            if position + 8 > size or (end := position + 8 + unpack(data, position)[0]) > size:
                self.position = position
                raise self.damaged("a string runs past the end of the file")
            items.append(data[position + 8 : end])
            position = end
        self.position = position
        return [self._decode(item) for item in items]

    def _decode(self, item: bytes) -> str:
        try:
            return item.decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{item[:40]!r} is not valid UTF-8") from None

    def value(self, kind: int, depth: int = 0) -> Any:
        """One metadata value of the format's type `kind`."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(depth)
        if kind not in _SCALARS:
            raise self.damaged(f"unknown value type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self, depth: int) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind not in _MIN_BYTES or depth >= MAX_ARRAY_DEPTH:
            raise self.damaged(f"unknown array type {kind} at depth {depth}")
        if count * _MIN_BYTES[kind] > self.size - self.position:
            raise self.damaged(f"an array of {count} elements runs past the end of the file")
        if kind == _STRING:
            return self.strings(count)
        if kind == _ARRAY:
            return [self._array(depth + 1) for _ in range(count)]
        start = self.need(count * _MIN_BYTES[kind])
        return list(struct.unpack_from(f"<{count}{_SCALARS[kind]}", self.data, start))


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; return the numbers of tensors and of metadata keys."""
    start = cursor.need(len(MAGIC))
    if cursor.data[start : cursor.position] != MAGIC:
        raise CorruptWeights(f"{cursor.path} is not a GGUF file: it does not begin with {MAGIC.decode()}")
    version = cursor.scalar("I")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise UnsupportedModel(
            f"{cursor.path} has GGUF version {version}; little-endian files of version {known} are supported"
        )
    return cursor.scalar("Q"), cursor.scalar("Q")


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    # Not a range of a number that the file made up: each round consumes bytes or raises.
    while len(metadata) < count:
        key = cursor.string()
        if key in metadata:
            raise cursor.damaged(f"metadata key {key!r} appears twice")
        metadata[key] = cursor.value(cursor.scalar("I"))
    return metadata


def _read_tensor_infos(cursor: _Cursor, count: int, alignment: object) -> dict[str, TensorInfo]:
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    while len(entries) < count:
        name = cursor.string()
        if name in entries:
            raise cursor.damaged(f"tensor {name!r} appears twice")
        num_dims = cursor.scalar("I")
        if not 1 <= num_dims <= MAX_DIMS:
            raise cursor.damaged(f"tensor {name!r} has {num_dims} dimensions")
        dims = tuple(cursor.scalar("Q") for _ in range(num_dims))
        entries[name] = (dims[::-1], cursor.scalar("I"), cursor.scalar("Q"))
    data_start = _aligned(cursor, alignment)
    return {
        name: _tensor_info(cursor, name, shape, kind, data_start + offset)
        for name, (shape, kind, offset) in entries.items()
    }


def _aligned(cursor: _Cursor, alignment: object) -> int:
    """Where the tensor data begins: the next multiple of the file's alignment."""
    if alignment is None:
        alignment = DEFAULT_ALIGNMENT
    if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.damaged(f"general.alignment must be a power of two, found {alignment!r}")
    return -(-cursor.position // alignment) * alignment


def _tensor_info(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
    try:
        tensor_type = GGMLQuantizationType(kind)
    except ValueError:
        raise UnsupportedModel(f"{cursor.path}: tensor {name!r} has the unknown type {kind}") from None
    block_size, block_bytes = GGML_QUANT_SIZES[tensor_type]
    if 0 in shape or shape[-1] % block_size:
        raise cursor.damaged(
            f"tensor {name!r} has shape {list(shape)}, "
            f"but {tensor_type.name} stores rows of multiples of {block_size}"
        )
    size_bytes = math.prod(shape) // block_size * block_bytes
    if offset + size_bytes > cursor.size:
        raise CorruptWeights(
            f"{cursor.path} is damaged or cut short: tensor {name!r} needs bytes {offset} to "
            f"{offset + size_bytes}, the file has {cursor.size}"
        )
    return TensorInfo(name=name, shape=shape, type=tensor_type, offset=offset, size_bytes=size_bytes)
