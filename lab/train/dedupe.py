"""Near-duplicates by MinHash over the lines of a file, with locality-sensitive hashing to find candidates."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

PERMUTATIONS = 64
BANDS = 16
_random = np.random.default_rng(20240501)
_MULTIPLY = _random.integers(0, 2**32, PERMUTATIONS, dtype=np.uint32) | np.uint32(1)
_ADD = _random.integers(0, 2**32, PERMUTATIONS, dtype=np.uint32)


def signature(text: str) -> np.ndarray:
    """MinHash of the set of lines (stripped, at least 6 characters): uint32 [64]."""
    hashes = {zlib.crc32(line) for raw in text.encode().split(b"\n") if len(line := raw.strip()) >= 6}
    if not hashes:
        hashes = {zlib.crc32(text.encode())}
    values = np.fromiter(hashes, dtype=np.uint32, count=len(hashes))
    mixed = values ^ (values >> np.uint32(15))
    out = np.full(PERMUTATIONS, np.iinfo(np.uint32).max, dtype=np.uint32)
    for start in range(0, len(mixed), 4096):
        block = mixed[start : start + 4096, None] * _MULTIPLY + _ADD
        out = np.minimum(out, (block ^ (block >> np.uint32(16))).min(axis=0))
    return out


def unique(signatures: Iterable[np.ndarray], threshold: float = 0.7) -> list[bool]:
    """For each signature in order: True if no earlier kept one is similar (estimated Jaccard >= threshold)."""
    tables: list[dict[bytes, list[int]]] = [{} for _ in range(BANDS)]
    kept: list[np.ndarray] = []
    flags: list[bool] = []
    width = PERMUTATIONS // BANDS
    for sig in signatures:
        keys = [sig[b * width : (b + 1) * width].tobytes() for b in range(BANDS)]
        candidates = {i for table, key in zip(tables, keys, strict=True) for i in table.get(key, ())}
        duplicate = any(np.count_nonzero(kept[i] == sig) >= threshold * PERMUTATIONS for i in candidates)
        flags.append(not duplicate)
        if not duplicate:
            for table, key in zip(tables, keys, strict=True):
                table.setdefault(key, []).append(len(kept))
            kept.append(sig)
    return flags
