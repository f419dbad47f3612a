"""A GGUF file (version 2 or 3): its metadata, and its tensors as byte ranges of a memory map."""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError

MAGIC = b"GGUF"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_HEADER = 512 << 20  # bytes: a vocabulary of a million words takes some 50 MB
_MOST_DIMENSIONS = 8
_DEEPEST = 4  # arrays in arrays


@dataclass(frozen=True)
class TensorType:
    name: str
    block: int  # elements per block
    size: int  # bytes per block


# Every type with a known size can be listed; those `gguf_blocks` cannot open are refused when a tensor is read.
TYPES: dict[int, TensorType] = {
    number: TensorType(name, block, size)
    for number, name, block, size in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
    )
}


@dataclass(frozen=True)
class GgufTensor:
    type: TensorType
    shape: tuple[int, ...]  # rows first, as in numpy
    start: int
    stop: int


class _Cursor:
    """Reads little-endian values one after the other; if the file ends early, says what it was reading."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.reading = path, data, 0, "the header"

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise FulgurError(
                f"{self.path}: truncated: the file ends at byte {len(self.data)} within {self.reading}",
                hint="Download the file again.",
            )
        if self.at + count > _MOST_HEADER:
            raise FulgurError(f"{self.path}: {self.reading} is beyond the limit of {_MOST_HEADER >> 20} MB of metadata")
        raw = self.data[self.at : self.at + count]
        self.at += count
        return raw

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SCALARS:
                code = _SCALARS[inner]
                return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code))))
            if depth > _DEEPEST:
                raise FulgurError(f"{self.path}: {self.reading} nests arrays too deeply")
            return [self.value(inner, depth + 1) for _ in range(count)]
        raise FulgurError(f"{self.path}: {self.reading} has an unknown value type: {kind}")


class GgufFile:
    def __init__(self, path: Path, *, whole: bool = True) -> None:
        self.path = path
        try:
            # Not blocking: a pipe of this name would never be opened.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if file.read(4) != MAGIC:
                    raise FulgurError(f"{path}: not a GGUF file (it does not start with {MAGIC.decode()!r})")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise FulgurError(f"{path}: cannot be opened: {error.strerror}") from None
        cursor = _Cursor(path, self._map)
        cursor.take(4)
        version = cursor.number("I")
        if version not in (2, 3):
            raise FulgurError(f"{path}: GGUF version {version} is not supported, only 2 and 3 (little-endian)")
        n_tensors, n_keys = cursor.number("Q"), cursor.number("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = cursor.text()
            cursor.reading = f"the metadata key {key}"
            self.metadata[key] = cursor.value(cursor.number("I"))
        self.tensors = self._read_tensors(cursor, n_tensors)
        self._parts: dict[str, GgufFile] = {}  # of tensors that lie in other files
        if whole and (parts := self._whole_number("split.count", 1)) > 1:
            self._open_parts(parts)

    def _whole_number(self, key: str, default: int) -> int:
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise FulgurError(f"{self.path}: {key} is {value!r:.100}; it must be an integer")
        return value

    def _open_parts(self, count: int) -> None:
        """Open the other files of a model in several, which are named `<stem>-00002-of-00003.gguf`."""
        match = _PART.fullmatch(self.path.name)
        if match is None or int(match[2]) != 1 or int(match[3]) != count:
            raise FulgurError(
                f"{self.path}: this is one of {count} parts, but its name is not that of the first",
                hint="Give the part that ends in -00001-of-…; the others must be in the same folder.",
            )
        for i in range(2, count + 1):
            path = self.path.with_name(f"{match[1]}-{i:05d}-of-{count:05d}.gguf")
            if not path.exists():
                raise FulgurError(f"{path}: this part is missing", hint="Download the whole model again.")
            part = GgufFile(path, whole=False)
            self._parts |= dict.fromkeys(part.tensors, part)
            self.tensors |= part.tensors

    def _read_tensors(self, cursor: _Cursor, count: int) -> dict[str, GgufTensor]:
        listed: list[tuple[str, tuple[int, ...], TensorType, int]] = []
        cursor.reading = "the list of tensors"
        for _ in range(count):
            name = cursor.text()
            cursor.reading = f"the entry of tensor {name}"
            dimensions = cursor.number("I")
            if dimensions > _MOST_DIMENSIONS:
                raise FulgurError(f"{self.path}: tensor {name} has {dimensions} dimensions")
            shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
            number, offset = cursor.number("I"), cursor.number("Q")
            if number not in TYPES:
                raise FulgurError(f"{self.path}: tensor {name} {list(shape)}: unknown quantisation type {number}")
            listed.append((name, shape, TYPES[number], offset))
        alignment = max(self._whole_number("general.alignment", 32), 1)
        base = -(-cursor.at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in listed:
            where = f"{self.path}: tensor {name} ({kind.name} {list(shape)})"
            if not shape or shape[-1] % kind.block:
                raise FulgurError(f"{where}: rows are not a multiple of the block size {kind.block}")
            start = base + offset
            stop = start + math.prod(shape) // kind.block * kind.size
            if stop > len(self._map):
                raise FulgurError(
                    f"{where}: expected bytes {start} to {stop}, the file ends at {len(self._map)}: it is truncated",
                    hint="Download the file again.",
                )
            tensors[name] = GgufTensor(kind, shape, start, stop)
        return tensors

    def blocks(self, name: str) -> npt.NDArray[np.uint8]:
        """A view of the map: uint8 [rows, bytes per row]."""
        if name in self._parts:
            return self._parts[name].blocks(name)
        tensor = self.tensors[name]
        raw = np.frombuffer(self._map, np.uint8, tensor.stop - tensor.start, tensor.start)
        return raw.reshape(math.prod(tensor.shape[:-1]), -1)
