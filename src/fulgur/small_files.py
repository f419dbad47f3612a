"""Reads small untrusted files whole: models' configs, templates and tokenizers."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST = 256 << 20  # bytes; the largest tokenizer has some 35 million


def read_small(path: Path) -> bytes:
    """A whole regular file; ValueError for anything else. A pipe would never end, a sparse file fill the memory."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise ValueError(f"{path} is not a file")
        if info.st_size > MOST:
            raise ValueError(f"{path} has {info.st_size:,} bytes, at most {MOST:,} are read")
        return file.read()
