"""Checks the arguments of a step for the Python runtimes; `module.cpp` makes the same checks."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int32]
BLOCK_TOKENS = 64  # positions of a KV block


class Limits(Protocol):
    """The limits that a runtime declares."""

    max_rows: int
    vocab_size: int
    max_context: int
    kv_blocks: int


def check_step(limits: Limits, token: Int, position: Int, sequence: Int, table: Int, wanted: Int) -> None:
    """Raise ValueError unless the runtime can run these rows."""
    n, rows, vocab, context = len(token), limits.max_rows, limits.vocab_size, limits.max_context
    if not 0 < n <= rows or len(position) != n or len(sequence) != n:
        raise ValueError(
            f"{n} tokens, {len(position)} positions, {len(sequence)} sequences: must be equal, 1 to {rows}"
        )
    if token.min() < 0 or token.max() >= vocab:
        raise ValueError(f"a token is outside the vocabulary of {vocab}")
    if position.min() < 0 or position.max() >= context:
        raise ValueError(f"a position is outside the context of {context}")
    if table.ndim != 2 or sequence.min() < 0 or sequence.max() >= len(table):
        raise ValueError(f"no block table for sequence {sequence.max()}: tables has shape {table.shape}")
    if len(wanted) and (wanted.min() < 0 or wanted.max() >= n):
        raise ValueError(f"logit row {wanted.max()} is outside the step of {n} rows")
    ends = np.ones(n, bool)  # whether a row is the last of its sequence
    np.not_equal(sequence[1:], sequence[:-1], out=ends[:-1])
    own = sequence[ends]
    if (~ends[:-1] & (position[1:] - position[:-1] != 1)).any() or len(set(own.tolist())) != len(own):
        raise ValueError("the rows of a sequence must be adjacent and at consecutive positions")
    need = position[ends] // BLOCK_TOKENS + 1  # blocks
    used = table[own, : need.max()]
    short = (need > used.shape[1]) | (
        ((used < 0) | (used >= limits.kv_blocks)) & (np.arange(used.shape[1]) < need[:, None])
    ).any(axis=1)
    if short.any():
        which = int(short.argmax())
        given = used[which, : need[which]].tolist()
        raise ValueError(f"a row of sequence {own[which]} has no KV block: its block table is {given}")
