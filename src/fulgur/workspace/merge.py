"""Merge two changes of one text, as long as they touch different lines."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

Hunk = tuple[int, int, list[bytes]]  # lines [start, end) of the base become these


def merge(base: bytes, one: bytes, other: bytes) -> bytes | None:
    """The base with both changes; None if they change the same or adjacent lines differently."""
    lines = base.splitlines(keepends=True)
    merged: list[bytes] = []
    position = 0
    waiting = sorted([*_hunks(lines, one), *_hunks(lines, other)], key=lambda hunk: hunk[:2])
    for index, (start, end, new) in enumerate(waiting):
        if index and waiting[index - 1] == (start, end, new):
            continue  # both made the same change
        if index and start <= waiting[index - 1][1]:
            return None
        merged += lines[position:start] + new
        position = end
    return b"".join(merged + lines[position:])


def _hunks(base: Sequence[bytes], changed: bytes) -> list[Hunk]:
    lines = changed.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, base, lines, autojunk=False)
    return [(a, b, lines[c:d]) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]
