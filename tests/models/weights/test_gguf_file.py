"""The GGUF container: values of every type, and what damage to a file does."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioinfer.errors import CorruptWeights, ModelError, UnsupportedModel
from aioinfer.models.weights.checkpoint import open_checkpoint
from aioinfer.models.weights.gguf_file import GGUFFile
from tests.models.weights.gguf_files import llama_metadata, llama_tensors, write_gguf
from tests.models.weights.test_gguf import make_model

if TYPE_CHECKING:
    from pathlib import Path

# The same path is written again for every example.
SAME_PATH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole and valid file."""
    model = make_model(num_hidden_layers=1)
    path = tmp_path_factory.mktemp("sound") / "sound.gguf"
    write_gguf(path, llama_metadata(model), llama_tensors(model), kind=gguf.GGMLQuantizationType.Q4_0)
    return path.read_bytes()


@pytest.fixture(scope="module")
def header_bytes(sound: bytes, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Where the tensor data begins."""
    path = tmp_path_factory.mktemp("header") / "sound.gguf"
    path.write_bytes(sound)
    return gguf.GGUFReader(path).data_offset


def use(path: Path) -> None:
    """Open a checkpoint and read all of it."""
    with open_checkpoint(path) as checkpoint, np.errstate(all="ignore"):
        for name in checkpoint.names():
            assert tuple(checkpoint.tensor(name).shape) == checkpoint.shape(name)


def test_metadata_of_every_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "types.gguf", "llama")
    values = {
        "uint8": 2**8 - 1,
        "int8": -(2**7),
        "uint16": 2**16 - 1,
        "int16": -(2**15),
        "uint32": 2**32 - 1,
        "int32": -(2**31),
        "uint64": 2**64 - 1,
        "int64": -(2**63),
        "float32": 0.5,
        "float64": 0.1,
        "bool": True,
        "string": "größe 🌶",
    }
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(kind, value)
    arrays: dict[str, Any] = {
        "ints": [1, 2, 3],
        "floats": [0.5, 1.5],
        "strings": ["a", "", "größe"],
        "bools": [True, False],
    }
    for key, array in arrays.items():
        writer.add_array(key, array)
    writer.add_array("nested", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "types.gguf")
    expected = values | arrays | {"general.architecture": "llama", "nested": [[1, 2], [3]]}
    assert file.metadata == expected
    assert file.tensors == {}


def test_alignment_of_the_file(tmp_path: Path) -> None:
    """Data begins and is found at multiples of the file's own alignment, down to one byte."""
    model = make_model(num_hidden_layers=1)
    for alignment in (1, 2, 64, 4096):
        path = tmp_path / f"{alignment}.gguf"
        tensors = llama_tensors(model)
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_custom_alignment(alignment)
        for name, values in tensors.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        file = GGUFFile(path)
        for name, values in tensors.items():
            info = file.tensors[name]
            assert info.offset % alignment == 0
            np.testing.assert_array_equal(file.blocks(info).tobytes(), values.tobytes())


@SAME_PATH
@given(data=st.data())
def test_truncation_at_any_byte(sound: bytes, header_bytes: int, tmp_path: Path, data: st.DataObject) -> None:
    # The header is a small part of the file, and where truncation is interesting.
    length = data.draw(st.integers(0, header_bytes) | st.integers(0, len(sound) - 1))
    path = tmp_path / "cut.gguf"
    path.write_bytes(sound[:length])
    with pytest.raises(CorruptWeights, match=r"cut\.gguf is (damaged or cut short|not a GGUF file|empty)"):
        open_checkpoint(path)


@SAME_PATH
@given(data=st.data())
def test_flipped_bits_in_the_header(
    sound: bytes, header_bytes: int, tmp_path: Path, data: st.DataObject
) -> None:
    """Whatever is damaged, the file is refused with a typed error, or still makes sense."""
    flips = data.draw(
        st.lists(st.tuples(st.integers(0, header_bytes - 1), st.integers(0, 7)), min_size=1, max_size=4)
    )
    damaged = bytearray(sound)
    for position, bit in flips:
        damaged[position] ^= 1 << bit
    path = tmp_path / "flipped.gguf"
    path.write_bytes(damaged)
    try:
        use(path)
    except ModelError as error:
        assert "flipped.gguf" in str(error) or "tensor" in str(error)


@SAME_PATH
@given(data=st.data())
def test_overwritten_numbers_in_the_header(
    sound: bytes, header_bytes: int, tmp_path: Path, data: st.DataObject
) -> None:
    """Lengths and counts that cannot be: nothing is allocated, nothing loops, on their word."""
    position = data.draw(st.integers(8, header_bytes - 8))
    number = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]))
    damaged = bytearray(sound)
    damaged[position : position + 8] = struct.pack("<Q", number)
    path = tmp_path / "overwritten.gguf"
    path.write_bytes(damaged)
    try:
        use(path)
    except ModelError as error:
        assert "overwritten.gguf" in str(error) or "tensor" in str(error)


@SAME_PATH
@given(content=st.binary(max_size=200))
def test_any_bytes_after_the_magic(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + content)
    with pytest.raises(ModelError):
        open_checkpoint(path)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def header(*, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys)


def tensor(name: bytes, dims: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    layout = f"<I{len(dims)}QIQ"
    return string(name) + struct.pack(layout, len(dims), *dims, kind, offset)


DAMAGED = {
    "version 1": (b"GGUF" + struct.pack("<I", 1), UnsupportedModel, "version 1; .* 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3), UnsupportedModel, "little-endian"),
    "something else": (b"PK\3\4" + bytes(100), CorruptWeights, "not a GGUF file"),
    "key twice": (
        header(keys=2) + (string(b"k") + struct.pack("<IB", 0, 1)) * 2,
        CorruptWeights,
        "'k' appears twice",
    ),
    "key not UTF-8": (header(keys=1) + string(b"\xff") + bytes(8), CorruptWeights, "not valid UTF-8"),
    "value type": (header(keys=1) + string(b"k") + struct.pack("<I", 13), CorruptWeights, "value type 13"),
    "array type": (
        header(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 77, 1),
        CorruptWeights,
        "array type 77",
    ),
    "array length": (
        header(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 8, 2**60),
        CorruptWeights,
        f"array of {2**60} elements",
    ),
    "array depth": (
        header(keys=1) + string(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100,
        CorruptWeights,
        "depth",
    ),
    "alignment": (
        header(keys=1) + string(b"general.alignment") + struct.pack("<II", 4, 3),
        CorruptWeights,
        "power of two, found 3",
    ),
    "tensor twice": (
        header(tensors=2) + tensor(b"t", (1,), 0) * 2 + bytes(64),
        CorruptWeights,
        "'t' appears twice",
    ),
    "dimensions": (header(tensors=1) + tensor(b"t", (1,) * 5, 0), CorruptWeights, "5 dimensions"),
    "no elements": (header(tensors=1) + tensor(b"t", (0, 4), 0), CorruptWeights, "shape"),
    "row and block": (header(tensors=1) + tensor(b"t", (33,), 2), CorruptWeights, "multiples of 32"),
    "tensor type": (header(tensors=1) + tensor(b"t", (1,), 999), UnsupportedModel, "unknown type 999"),
    "offset": (header(tensors=1) + tensor(b"t", (1,), 0, 2**40), CorruptWeights, "needs bytes"),
    "overflow": (header(tensors=1) + tensor(b"t", (2**63, 2**63), 0), CorruptWeights, "needs bytes"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_by_kind(tmp_path: Path, name: str) -> None:
    content, error, message = DAMAGED[name]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        GGUFFile(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    with pytest.raises(ModelError, match=r"cannot read .*loop\.gguf"):
        GGUFFile(tmp_path / "loop.gguf")
