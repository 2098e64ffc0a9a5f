"""The key-value part of a GGUF file, read straight from the file.

`gguf.GGUFReader` makes a numpy view of every string: two seconds for a vocabulary of 49,152, where this takes 30 ms.
The file is hostile: every length is checked before it is used.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.text.errors import ModelFolderError

MAX_KEYS = 65_536
MAX_ARRAY_ITEMS = 4_194_304
MAX_STRING_BYTES = 4_194_304
MAX_TENSORS = 65_536
MAX_DIMENSIONS = 4

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys of the file: numbers, strings, lists of either. Raises `ModelFolderError` for anything that is no GGUF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return dict(_Cursor(view).pairs())
    except OSError as error:
        raise ModelFolderError("The model file cannot be read.", detail=str(error)) from error
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise ModelFolderError("The model file is damaged.", detail=f"{path.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor's bytes begin in the file. `shape` is row-major; `kind` is GGML's number of the type."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def read_tensor_table(path: Path) -> dict[str, TensorPlace]:
    """All tensors of the file by name. Whether their bytes are there is the reader's to check. Raises `ModelFolderError`."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return {place.name: place for place in _Cursor(view).tensors()}
    except OSError as error:
        raise ModelFolderError("The model file cannot be read.", detail=str(error)) from error
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise ModelFolderError("The model file is damaged.", detail=f"{path.name}: {error}") from error


class _Cursor:
    def __init__(self, view: mmap.mmap) -> None:
        self.view = view
        self.at = 0

    def pairs(self) -> Iterator[tuple[str, Any]]:
        magic, version, _tensors, keys = self._unpack("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3) or keys > MAX_KEYS:
            raise ValueError(f"no GGUF header of version 2 or 3: {magic!r}, {version}, {keys} keys")
        for _ in range(keys):
            key = self._string()
            yield key, self._value(self._number("I"))

    def tensors(self) -> Iterator[TensorPlace]:
        alignment = int(dict(self.pairs()).get("general.alignment", 32))
        (count,) = struct.unpack_from("<Q", self.view, 8)
        if count > MAX_TENSORS or alignment < 1:
            raise ValueError(f"{count} tensors, aligned to {alignment}")
        entries = [self._tensor() for _ in range(count)]
        data = -(-self.at // alignment) * alignment
        yield from (TensorPlace(name, shape, kind, data + offset) for name, shape, kind, offset in entries)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._number("I")
        if dimensions > MAX_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        shape = tuple(reversed(self._unpack(f"{dimensions}Q")))
        return name, shape, self._number("I"), self._number("Q")

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.view, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def _number(self, layout: str) -> Any:
        return self._unpack(layout)[0]

    def _string(self) -> str:
        return self._strings(1)[0]

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return self._number(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self._unpack("IQ")
        if count > MAX_ARRAY_ITEMS:
            raise ValueError(f"an array of {count} items")
        if kind == _STRING:
            return self._strings(count)
        if kind not in _SCALARS:
            raise ValueError(f"an array of type {kind}")
        return list(self._unpack(f"{count}{_SCALARS[kind]}"))

    def _strings(self, count: int) -> list[str]:
        view, at, end = self.view, self.at, len(self.view)
        length_of = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            (length,) = length_of(view, at)
            start, at = at + 8, at + 8 + length
            if length > MAX_STRING_BYTES or at > end:
                raise ValueError(f"a string of {length} bytes at {start}")
            strings.append(view[start:at].decode())
        self.at = at
        return strings
