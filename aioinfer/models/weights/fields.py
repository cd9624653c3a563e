"""Reading small files and the values in them, so that every complaint names the file and the key.

Used by both weight formats: config.json and GGUF metadata are mappings that somebody else wrote.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from aioinfer.errors import CorruptWeights, ModelError, ModelNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Sizes beyond this are damage, not models; it also keeps products of two of them in 64 bits.
MAX_SIZE = 2**31 - 1


def exists(path: Path) -> bool:
    """Whether there is something at a path.

    Raises:
        ModelError: one of its parents may not be looked into, or the name is impossible.
    """
    try:
        return path.exists()
    except OSError as error:
        raise ModelError(f"cannot look at {path}: {error.strerror}") from error


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        ModelNotFound: it does not exist.
        ModelError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelNotFound(f"{path} does not exist") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file.

    Raises:
        ModelNotFound, ModelError: as `read_bytes`.
        CorruptWeights: it is not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptWeights(f"{path} is not valid UTF-8: {error.reason} at byte {error.start}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelNotFound, ModelError: as `read_bytes`.
        CorruptWeights: it is not a JSON object.
    """
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptWeights(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptWeights(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


class Fields:
    """Typed access to a mapping read from a file; null counts as absent.

    Every method raises `CorruptWeights`, naming file and key, for a value of the wrong type or range.

    Args:
        values: the mapping.
        source: where it was read, for messages.
    """

    def __init__(self, values: Mapping[str, Any], source: Path | str) -> None:
        self.values = values
        self.source = source

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def _wrong(self, key: str, wanted: str) -> CorruptWeights:
        found = repr(self.values.get(key))
        shown = found if len(found) <= 60 else found[:57] + "..."
        return CorruptWeights(f"{self.source}: {key} must be {wanted}, found {shown}")

    def _require(self, key: str) -> None:
        if key not in self:
            raise CorruptWeights(f"{self.source} has no {key}")

    def size(self, key: str) -> int | None:
        """An integer from 1 to `MAX_SIZE`, if present."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise self._wrong(key, f"an integer from 1 to {MAX_SIZE}")
        return value

    def required_size(self, key: str) -> int:
        """An integer from 1 to `MAX_SIZE`."""
        self._require(key)
        value = self.size(key)
        assert value is not None
        return value

    def positive(self, key: str) -> float | None:
        """A finite number above 0, if present."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number above 0")
        if not 0 < value <= MAX_SIZE or not math.isfinite(value):
            raise self._wrong(key, f"a number above 0 and up to {MAX_SIZE}")
        return float(value)

    def required_positive(self, key: str) -> float:
        """A finite number above 0."""
        self._require(key)
        value = self.positive(key)
        assert value is not None
        return value

    def positives(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers above 0; empty if absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self._wrong(key, "a list of numbers above 0")
        items = Fields({f"{key}[{i}]": item for i, item in enumerate(value)}, self.source)
        return tuple(items.required_positive(name) for name in items.values)

    def boolean(self, key: str, default: bool) -> bool:
        """A boolean, or the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def string(self, key: str) -> str | None:
        """A string, if present."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def section(self, key: str) -> Fields | None:
        """A nested object, if present."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return Fields(value, f"{self.source}: {key}")

    def token_ids(self, key: str) -> tuple[int, ...]:
        """A token id or a list of them; empty if absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        for item in ids:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= MAX_SIZE:
                raise self._wrong(key, "a token id or a list of them")
        return tuple(ids)
