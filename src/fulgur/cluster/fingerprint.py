"""Tells whether two machines hold the same model as far as tokens go: the replica must read what the front encodes."""

from __future__ import annotations

import hashlib
from pathlib import Path

_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer.model")
_HEAD = 1 << 20  # bytes of a GGUF file: its metadata, the tokenizer among them


def fingerprint(model: Path) -> str:
    digest = hashlib.sha256()
    if model.is_file():
        with model.open("rb") as file:
            digest.update(file.read(_HEAD))
    else:
        for name in _FILES:
            path = model / name
            digest.update(name.encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()
