"""A unified diff of two texts."""

from __future__ import annotations

import difflib


def unified(before: str, after: str, name: str) -> str:
    """The unified diff of two texts; "" when they are equal. A line ends at a line feed and nowhere else."""
    lines = []
    for line in difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}"):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _lines(text: str) -> list[str]:
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])
