"""Token records packed into rows of one fixed length, with a loss weight for every token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

WEIGHT_UNIT = 16  # a stored weight of 16 means 1.0
_OPEN = 64


def pack(
    records: Iterable[tuple[Sequence[int], Sequence[float]]], length: int, pad: int = 0
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    """Pack records best-fit without cutting them: [rows, length] tokens and weights. Longer records are left out."""
    done: list[list[tuple[Sequence[int], Sequence[float]]]] = []
    bins: list[tuple[int, list[tuple[Sequence[int], Sequence[float]]]]] = []  # (room left, records)
    for record in records:
        size = len(record[0])
        if size > length or size < 2:
            continue
        best = min((i for i, (room, _) in enumerate(bins) if room >= size), key=lambda i: bins[i][0], default=None)
        if best is None:
            if len(bins) == _OPEN:
                fullest = min(range(_OPEN), key=lambda i: bins[i][0])
                done.append(bins.pop(fullest)[1])
            bins.append((length - size, [record]))
        else:
            bins[best][1].append(record)
            bins[best] = (bins[best][0] - size, bins[best][1])
    done += [held for _, held in bins]
    tokens = np.full((len(done), length), pad, np.uint16)
    weights = np.zeros((len(done), length), np.uint8)
    for row, held in enumerate(done):
        at = 0
        for ids, values in held:
            tokens[row, at : at + len(ids)] = ids
            weights[row, at : at + len(ids)] = np.clip(np.rint(np.asarray(values) * WEIGHT_UNIT), 0, 255)
            weights[row, at] = 0  # a record's first token follows another record, so there is nothing to learn
            at += len(ids)
    return tokens, weights


def save_rows(folder: Path, name: str, tokens: npt.NDArray[np.uint16], weights: npt.NDArray[np.uint8]) -> None:
    """Write `name` into the folder; the tokens file appears last, and readers look for it."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, array in (("weights", weights), ("tokens", tokens)):
        partial = folder / f"{name}.{suffix}.partial"
        with partial.open("wb") as out:
            np.save(out, array)
        partial.replace(folder / f"{name}.{suffix}.npy")


def load_rows(folder: Path, prefix: str) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]] | None:
    """All finished rows whose name begins with `prefix`, or None if there are none."""
    files = sorted(folder.glob(f"{prefix}*.tokens.npy"))
    if not files:
        return None
    tokens = np.concatenate([np.load(file, mmap_mode="r") for file in files])
    weights = np.concatenate([np.load(str(file).replace(".tokens.", ".weights."), mmap_mode="r") for file in files])
    return tokens, weights
