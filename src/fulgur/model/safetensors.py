"""safetensors files, read by memory map and written with 64-byte aligned data.

The format is an 8-byte header length, a JSON header {name: {dtype, shape, data_offsets}}, then the bytes. It is read
here rather than through the library so that bf16 works without torch, single rows can be taken, and a damaged file is
reported by tensor and shape.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.bfloat16 import from_bfloat16

ALIGNMENT = 64
_MOST_HEADER = 100_000_000  # bytes, as the format says
PIECE = 8 << 20  # bytes written at once, at multiples of it, so that a page cache may keep the file in huge pages
# bf16 has no numpy type: it is held as uint16 and widened by `to_float32`.
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "F8_E4M3": np.dtype("u1"),  # codes; `stored.py` has their values
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}


@dataclass(frozen=True)
class TensorEntry:
    dtype: str
    shape: tuple[int, ...]
    start: int  # from the start of the file
    stop: int


def to_float32(raw: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "BF16":
        return from_bfloat16(raw)
    return raw.astype(np.float32)


class SafetensorsFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Non-blocking: opening a pipe of this name would block forever.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < 8:
                    raise FulgurError(f"{path}: {size} bytes is too short for a safetensors file")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise FulgurError(f"{path}: cannot be opened: {error.strerror}") from None
        self.entries, self.metadata = self._read_header(size)

    def _read_header(self, size: int) -> tuple[dict[str, TensorEntry], dict[str, str]]:
        length = int.from_bytes(self._map[:8], "little")
        if length > min(size - 8, _MOST_HEADER):
            raise FulgurError(
                f"{self.path}: truncated or not safetensors: the header needs {length + 8} bytes, the file has {size}"
            )
        try:
            header = json.loads(self._map[8 : 8 + length])
        except (ValueError, RecursionError) as error:
            raise FulgurError(f"{self.path}: not a safetensors file: the header is not JSON ({error})") from None
        if not isinstance(header, dict):
            raise FulgurError(f"{self.path}: not a safetensors file: the header is not an object")
        metadata = header.pop("__metadata__", {})
        entries: dict[str, TensorEntry] = {}
        for name, item in header.items():
            try:
                first, last = item["data_offsets"]
                shape = tuple(item["shape"])
                if any(type(number) is not int or number < 0 for number in (first, last, *shape)) or first > last:
                    raise ValueError
                entry = TensorEntry(str(item["dtype"]), shape, 8 + length + first, 8 + length + last)
            except (KeyError, TypeError, ValueError):
                raise FulgurError(f"{self.path}: tensor {name}: malformed header entry {item!r:.300}") from None
            self._check(name, entry, size)
            entries[name] = entry
        return entries, metadata

    def _check(self, name: str, entry: TensorEntry, size: int) -> None:
        where = f"{self.path}: tensor {name} ({entry.dtype} {list(entry.shape)})"
        if entry.stop > size:
            raise FulgurError(
                f"{where}: expected bytes {entry.start} to {entry.stop}, the file ends at {size}: it is truncated",
                hint="Download the file again.",
            )
        if entry.dtype in DTYPES:
            expected = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
            if entry.stop - entry.start != expected:
                raise FulgurError(f"{where}: expected {expected} bytes, found {entry.stop - entry.start}")

    def ask_for_huge_pages(self) -> None:
        """Read the file into huge pages, if its file system can: fewer page faults and fewer TLB misses. What is in the
        page cache already stays as it is."""
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._map.madvise(mmap.MADV_HUGEPAGE)

    def view(self, entry: TensorEntry) -> memoryview:
        """The stored bytes, of any type."""
        return memoryview(self._map)[entry.start : entry.stop]

    def array(self, name: str) -> npt.NDArray[Any]:
        """A view of the map, in the stored type (bf16 as uint16)."""
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise FulgurError(
                f"{self.path}: tensor {name} {list(entry.shape)}: type {entry.dtype} is not supported",
                hint=f"Supported: {', '.join(DTYPES)}.",
            )
        count = math.prod(entry.shape)
        return np.frombuffer(self._map, DTYPES[entry.dtype], count, entry.start).reshape(entry.shape)


def write_safetensors(
    path: Path, tensors: Mapping[str, tuple[str, npt.NDArray[Any]]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write {name: (dtype, array)} in the given order; the data starts on a 64-byte boundary, without gaps."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    _write_all(path, [len(text).to_bytes(8, "little"), text], (array for _, array in tensors.values()))


def write_streamed(
    path: Path, shapes: Mapping[str, tuple[str, tuple[int, ...]]], parts: Callable[[str], Iterable[npt.NDArray[Any]]]
) -> None:
    """Write {name: (dtype, shape)} whose data `parts(name)` gives piece by piece, for files larger than the memory."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape) in shapes.items():
        size = math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    _write_all(path, [len(text).to_bytes(8, "little"), text], (part for name in shapes for part in parts(name)))


def _write_all(path: Path, head: list[bytes], arrays: Iterable[npt.NDArray[Any]]) -> None:
    """Write under a temporary name and rename, so that a reader never sees half a file."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb", buffering=0) as file:
        piece, used = memoryview(bytearray(PIECE)), 0
        parts = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays)
        for left in itertools.chain(map(memoryview, head), parts):
            while left:
                count = min(PIECE - used, len(left))
                piece[used : used + count] = left[:count]
                left, used = left[count:], used + count
                if used == PIECE:
                    _write(file, piece)
                    used = 0
        _write(file, piece[:used])
    temporary.replace(path)


def _write(file: RawIOBase, data: memoryview) -> None:
    while data:
        data = data[file.write(data) or 0 :]
