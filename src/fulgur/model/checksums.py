"""Checksums of a model's files, in `checksums.json` beside them, so that a flipped bit on disk is reported by name.

The checksum is made for speed, since it is compared at every start: 64-bit sums of pieces of 64 kB, at the speed of the
memory, and the CRC of these sums. It finds accidental damage only: whoever can write the files can also write the sums.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fulgur.errors import FulgurError
from fulgur.model.config import read_json

FILE = "checksums.json"
AT_START = 256 << 20  # bytes; of a larger file only the size is compared, until `fulgur models check`
_PIECE = 8192  # words in one sum
_BLOCK = 1024 * _PIECE  # words read at a time


def checksum(path: Path) -> str:
    """The checksum of a whole file."""
    size = path.stat().st_size
    data = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
    words = data[: size // 8 * 8].view("<u8")
    crc = 0
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
        crc = zlib.crc32(np.add.reduceat(block, np.arange(0, len(block), _PIECE)).tobytes(), crc)
    return f"{zlib.crc32(data[len(words) * 8 :].tobytes(), crc):08x}"


def write(folder: Path, names: Iterable[str]) -> None:
    """Record the sizes and checksums of these files of a folder."""
    known = {name: {"size": (folder / name).stat().st_size, "sum": checksum(folder / name)} for name in names}
    (folder / FILE).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def check(model: Path, *, whole: bool = False) -> int:
    """Compare a model folder, or the folder of a .gguf file, with its checksums; returns the number of files compared.

    Raises FulgurError for the first that differs. The contents of large files are compared only if `whole`.
    """
    folder = model if model.is_dir() else model.parent
    source = folder / FILE
    if not os.path.lexists(source):
        return 0
    try:
        known = read_json(source)
        wanted = [(folder / name, int(entry["size"]), str(entry["sum"])) for name, entry in known.items()]
    except (FulgurError, ValueError, TypeError, KeyError):
        raise FulgurError(f"{source} is damaged", hint=_HINT) from None
    for path, size, expected in wanted:
        try:
            info = os.stat(path)
            if not stat.S_ISREG(info.st_mode):
                raise FulgurError(f"{path} is not a file", hint=_HINT)
            if info.st_size != size:
                raise FulgurError(f"{path} is damaged: it has {info.st_size:,} bytes instead of {size:,}", hint=_HINT)
            if (whole or size <= AT_START) and checksum(path) != expected:
                raise FulgurError(f"{path} is damaged: its contents do not match the checksum in {FILE}", hint=_HINT)
        except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise FulgurError(f"{path}: {reason}; it is listed in {FILE}", hint=_HINT) from None
    return len(wanted)


_HINT = f"Fetch or install the model again. If you changed it yourself, delete its {FILE}."
